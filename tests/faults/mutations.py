"""Sound files made unsound, as an untrusted source or a broken disk might make them; the same seed gives the same."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ctrlformer.storage.files import to_json

DEEP = "@deep@"  # stands for nesting that json.dumps itself could not write
HOSTILE: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    2**31,
    2**63,
    10**400,
    -0.5,
    0.5,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "1",
    "x",
    "x" * 100_000,
    "../../../etc/passwd",
    "/dev/zero",
    "gym/antigravity:Evil-v0",
    "gym/a:b:c",
    "toy/reach",
    "toy/slide",
    "nul\x00byte",
    "half \ud800 of a letter",
    "line\nbreak \x1b[2J",
    "<script>alert(1)</script>",
    "$\\frac{$",
    "meta",
    "cuda:99",
    "{{ 7 * 7 }} {% raw %}",
    [],
    {},
    [1, 2, 3],
    [[]],
    [None] * 10_000,
    {"a": 1},
    {"": {"": {}}},
    DEEP,
]


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flipped, cut, doubled, filled or stuffed."""
    if not data:
        return rng.randbytes(8)
    place, length = rng.randrange(len(data)), rng.randrange(1, 1 + min(len(data), 64))
    before, rest = data[:place], data[place + length :]
    kind = rng.randrange(6)
    if kind == 0:
        flipped = bytearray(data)
        for _ in range(rng.randrange(1, 9)):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return before
    if kind == 2:
        return data[: place + length] + data[place:]
    if kind == 3:
        return before + bytes([rng.choice([0, 255])]) * length + rest
    if kind == 4:
        return before + rest
    return before + rng.randbytes(length) + data[place:]


def mutated_value(rng: random.Random, value: Any) -> Any:
    """The same JSON value but for one or a few places in it."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        holder, key = _place(rng, value)
        if holder is None:
            return rng.choice(HOSTILE)
        kind = rng.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(["", "extra", "stage", "__class__", "x" * 1000, "a\nb"])] = rng.choice(HOSTILE)
        elif kind == 2 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        elif kind == 3 and isinstance(holder[key], int | float):
            holder[key] = rng.choice([-1, 2, 1000, 0.001, -1e9]) * holder[key] + rng.choice([0, 1, -1])
        else:
            holder[key] = copy.deepcopy(rng.choice(HOSTILE))
    return value


def _place(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """A random place: what holds it, and its key; none at the top."""
    holder, key = None, None
    while isinstance(value, dict | list) and value and (holder is None or rng.random() < 0.75):
        holder = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
    return holder, key


def as_text(value: Any, indent: int | None = None) -> bytes:
    text = json.dumps(value, indent=indent)
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).encode()


def mutated_json(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.25:
        return damaged_bytes(rng, data)
    return as_text(mutated_value(rng, json.loads(data)), indent=2) + b"\n"


def mutated_rows(rng: random.Random, data: bytes) -> bytes:
    """A log with one row changed, doubled, moved or gone."""
    if rng.random() < 0.2:
        return damaged_bytes(rng, data)
    lines = data.splitlines()
    place, kind = rng.randrange(len(lines)), rng.randrange(8)
    if kind == 0:
        lines.insert(rng.randrange(len(lines) + 1), lines[place])
    elif kind == 1:
        lines.pop(place)
    elif kind == 2:
        rng.shuffle(lines)
    else:
        lines[place] = as_text(mutated_value(rng, json.loads(lines[place])))
    return b"".join(line + b"\n" for line in lines)


def mutated_tensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file with other bytes, another header, or one tensor that is another."""
    kind = rng.randrange(4)
    if kind == 0:
        return damaged_bytes(rng, data)
    if kind == 1:
        length = int.from_bytes(data[:8], "little")
        header = as_text(mutated_value(rng, json.loads(data[8 : 8 + length])))
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    tensors = safetensors.torch.load(data)
    if not tensors:
        return data
    name = rng.choice(sorted(tensors))
    tensors[name] = _other(rng, tensors[name])
    if rng.random() < 0.2:
        tensors[rng.choice(["", "0.step", "99.exp_avg", "x" * 300])] = tensors.pop(name)
    return safetensors.torch.save(tensors)


def _other(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    changes = [
        lambda: torch.full_like(tensor, 255) if tensor.dtype == torch.uint8 else torch.full(tensor.shape, float("nan")),
        lambda: torch.full(tensor.shape, 1e38),
        lambda: tensor.reshape(-1)[: rng.randrange(tensor.numel() + 1)].clone(),
        lambda: tensor[None].clone(),
        lambda: torch.zeros(0),
        lambda: torch.zeros(3, 0, 2),
        lambda: torch.zeros(1000, 7),
        lambda: tensor.to(rng.choice([torch.float64, torch.int8, torch.bool, torch.bfloat16, torch.complex64])),
        lambda: torch.tensor(rng.choice([-1, 2**62, 0])),
    ]
    return rng.choice(changes)()


def reseal(checkpoint: Path) -> None:
    """Give the manifest the sizes and sums of the files as they are, so that only what is inside can be wrong."""
    file = checkpoint / "manifest.json"
    manifest = json.loads(file.read_bytes())
    for name in manifest["files"]:
        data = (checkpoint / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    file.write_bytes(to_json(manifest))
