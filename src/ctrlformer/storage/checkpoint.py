"""Checkpoints: written whole or not at all, validated before use, never executed.

A checkpoint is a folder of safetensors and JSON files with a manifest of their sizes and SHA-256. It is written
under a temporary name, synced, renamed, and read back; only then does an older one go. Loading takes the newest
that is sound. Nothing is ever unpickled, and a file can neither name another place nor ask for endless memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError

from ctrlformer.errors import CheckpointError, NonFiniteError, RunError
from ctrlformer.storage.files import (
    JSON,
    TEMPORARY,
    fsync_folder,
    parse_json,
    read_bounded,
    reason,
    remove_folder,
    remove_tree,
    to_json,
    write_atomic,
    write_durable,
)

FORMAT = 2
LAST = "last"  # a small file that names the newest checkpoint, for people and scripts
MANIFEST = "manifest.json"
MANIFEST_BYTES = 1 << 20
JSON_BYTES = 64 << 20
TENSOR_BYTES = 2 << 30
NEXT = "; trying the checkpoint before it"
HEADER_BYTES = 4 << 20  # of a safetensors file: names and shapes of its tensors

Tensors: TypeAlias = dict[str, torch.Tensor]
Used = TypeVar("Used")


class Checkpoint(NamedTuple):
    """What `save` was given."""

    step: int
    tensors: dict[str, Tensors]
    state: dict[str, JSON]
    path: Path


def save(folder: Path, step: int, tensors: Mapping[str, Tensors], state: Mapping[str, JSON], keep: int = 2) -> Path:
    """Write the checkpoint of `step`, verify it, then delete all but the newest `keep`.

    `folder` is the run's `checkpoints`. If anything cannot be written, that is a `RunError`, and the older
    checkpoints are as they were.
    """
    files = {f"{_checked(name)}.safetensors": pack(group) for name, group in tensors.items()}
    files |= {f"{_checked(name)}.json": _to_json(name, value) for name, value in state.items()}
    path = folder / f"{step}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(folder)
        path = _write(folder, step, files)
        _verify(path)
        write_atomic(folder / LAST, f"{path.name}\n".encode())
        _remove_old(folder, path, keep)
    except OSError as error:
        raise RunError(
            f"cannot write checkpoint {path}: {reason(error)}; older checkpoints are intact, fix this and resume"
        ) from error
    return path


def load(folder: Path, warn: Callable[[str], None] = warnings.warn) -> Checkpoint:
    """The newest sound checkpoint; each damaged one that it had to pass over is named through `warn`."""
    return load_as(lambda saved: saved, folder, warn)


def load_as(use: Callable[[Checkpoint], Used], folder: Path, warn: Callable[[str], None] = warnings.warn) -> Used:
    """What `use` makes of the newest sound checkpoint that it does not refuse by a `CheckpointError`.

    Each that is passed over is named through `warn`; if none is left, the error says why the newest was.
    """
    passed_over: list[str] = []

    def pass_over(text: str) -> None:
        passed_over.append(text)
        warn(text)

    for saved in candidates(folder, pass_over):
        try:
            return use(saved)
        except CheckpointError as error:
            pass_over(f"{error}{NEXT}")
    why = passed_over[0].removesuffix(NEXT) if passed_over else "there is none"
    raise CheckpointError(f"no usable checkpoint in {folder} ({why}): start again in a new run folder")


def candidates(folder: Path, warn: Callable[[str], None] = warnings.warn) -> Iterator[Checkpoint]:
    """Sound checkpoints, newest first; each damaged one is named through `warn`."""
    for path in reversed(_list(folder)):
        try:
            yield _read(path)
        except CheckpointError as error:
            warn(f"{error}{NEXT}")


def _checked(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{1,64}", name) or name == "manifest":
        raise ValueError(f"checkpoint part {name!r}: use lower-case letters, digits and underscores, not 'manifest'")
    return name


def _to_json(name: str, value: JSON) -> bytes:
    try:
        return to_json(value)
    except ValueError as error:
        raise NonFiniteError(f"{name} cannot be saved: {error}; no checkpoint was written") from None


def pack(group: Tensors) -> bytes:
    """A group of named tensors as the bytes of a safetensors file."""
    # Cloned, because safetensors refuses tensors that share memory, as an online and a target part may.
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in group.items()})


def _write(folder: Path, step: int, files: Mapping[str, bytes]) -> Path:
    """The finished folder of a new checkpoint: it gets its name only when every byte is on the disk."""
    temporary = folder / f"{TEMPORARY}{step}"
    temporary.mkdir()
    entries = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(files.items())
    }
    manifest = to_json({"format": FORMAT, "step": step, "files": entries})
    try:
        for name, data in {**files, MANIFEST: manifest}.items():
            write_durable(temporary / name, data)
        fsync_folder(temporary)
        path = _free_name(folder, step)
        os.replace(temporary, path)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # gives its space back; the error itself is raised
        raise
    fsync_folder(folder)
    return path


def _free_name(folder: Path, step: int) -> Path:
    """`1200`, or `1200.1` when step 1200 was saved before: a folder cannot be replaced by another in one go."""
    repeats = [repeat for old, repeat in map(_order, _list(folder)) if old == step]
    return folder / (f"{step}.{max(repeats) + 1}" if repeats else f"{step}")


def _remove_unfinished(folder: Path) -> None:
    """What a crash left behind; only the holder of the run's lock saves, so nobody is still writing it."""
    for path in folder.glob(f"{TEMPORARY}*"):
        remove_tree(path)


def _remove_old(folder: Path, newest: Path, keep: int) -> None:
    """Keep the newest `keep`. One of a later step is of a future that was given up because it was damaged."""
    paths = _list(folder)
    kept = paths[: paths.index(newest) + 1][-keep:]
    for path in paths:
        if path not in kept:
            remove_folder(path)


def _list(folder: Path) -> list[Path]:
    """Every finished checkpoint, sound or not, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted((folder / name for name in names if _NAME.fullmatch(name)), key=_order)


_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(?:\.([1-9][0-9]{0,8}))?")


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _verify(path: Path) -> None:
    """Read a checkpoint back from the disk before anything relies on it."""
    try:
        _read(path)
    except CheckpointError:
        remove_folder(path)
        raise


def _read(path: Path) -> Checkpoint:
    if path.is_symlink():
        raise CheckpointError(f"checkpoint {path} is a link to another place: refused")
    tensors: dict[str, Tensors] = {}
    state: dict[str, JSON] = {}
    for name, entry in _read_manifest(path).items():
        file = path / name
        stem, kind = name.split(".")
        data = _read_file(file, JSON_BYTES if kind == "json" else TENSOR_BYTES)
        if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CheckpointError(f"checkpoint file {file} is damaged: it is not what was saved")
        if kind == "json":
            state[stem] = _parse(file, data)
        else:
            tensors[stem] = unpack(file, data)
    return Checkpoint(_order(path)[0], tensors, state, path)


def _read_manifest(path: Path) -> dict[str, dict[str, JSON]]:
    file = path / MANIFEST
    data = _read_file(file, MANIFEST_BYTES)
    manifest = _parse(file, data)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is int and found != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {found}: use the version that wrote it (the run's environment.json names"
            f" it), this one reads {FORMAT}"
        )
    # Exactly as `save` would write it, down to the last space: no change to the manifest itself goes unseen.
    if type(found) is not int or set(manifest) != {"format", "step", "files"} or not _is_as_saved(manifest, data):
        raise CheckpointError(f"checkpoint file {file} is damaged: it is not a manifest")
    files = manifest["files"]
    if manifest["step"] != _order(path)[0] or not isinstance(files, dict) or not all(map(_is_entry, files.items())):
        raise CheckpointError(f"checkpoint file {file} is damaged: it does not describe this checkpoint")
    if sum(entry["bytes"] for entry in files.values()) > TENSOR_BYTES:
        raise CheckpointError(f"checkpoint {path} is larger than {TENSOR_BYTES} bytes: refused")
    return files


def _is_as_saved(manifest: JSON, data: bytes) -> bool:
    try:
        return to_json(manifest) == data
    except (ValueError, RecursionError):  # infinities, or nesting that only reading survives
        return False


def _is_entry(item: tuple[str, JSON]) -> bool:
    name, entry = item
    return (
        re.fullmatch(r"[a-z0-9_]{1,64}\.(safetensors|json)", name) is not None
        and isinstance(entry, dict)
        and set(entry) == {"bytes", "sha256"}
        and type(entry["bytes"]) is int
        and entry["bytes"] >= 0
    )


def _read_file(file: Path, limit: int) -> bytes:
    try:
        return read_bounded(file, limit)
    except OSError as error:
        raise CheckpointError(f"checkpoint file {file} cannot be read: {reason(error)}") from error


def _parse(file: Path, data: bytes) -> JSON:
    try:
        return parse_json(data)
    except ValueError as error:
        raise CheckpointError(f"checkpoint file {file} is not JSON: {error}") from None


def unpack(file: Path, data: bytes) -> Tensors:
    """The tensors in the bytes of `file`; what is not safetensors is a `CheckpointError`."""
    if int.from_bytes(data[:8], "little") > HEADER_BYTES:
        raise CheckpointError(f"checkpoint file {file} has a header of over {HEADER_BYTES} bytes: refused")
    try:
        return safetensors.torch.load(data)
    except (
        SafetensorError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
    ) as error:
        raise CheckpointError(f"checkpoint file {file} is not safetensors: {f'{error}'[:200]!r}") from None
