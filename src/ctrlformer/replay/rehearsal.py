"""Rehearsal buffers: observations of a finished task with the outputs that its policy had at its stage's end.

Later stages are held to these outputs, and drift is measured on them. A file per task in the run folder,
`kept/<task>.safetensors`; every later checkpoint has its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ctrlformer.errors import CheckpointError, RunError
from ctrlformer.storage.checkpoint import TENSOR_BYTES, pack, unpack
from ctrlformer.storage.files import read_bounded, reason, write_atomic

SHOWN = 64  # observations on which drift is measured: enough to see it, at little cost beside the updates


class Outputs(NamedTuple):
    """The outputs of a task's policy for observations."""

    features: Tensor  # (N, F)
    action: Tensor  # (N, A) mean action
    std: Tensor  # (N, A) of the Gaussian before tanh


STORED = ("features", "action", "deviation")  # names of the outputs in a file


class Rehearsal(NamedTuple):
    """Observations of one rehearsal buffer, with their outputs, for one update."""

    task: str
    observations: Tensor  # (R, H, W, C) uint8, or (R, 3, features)
    outputs: Outputs
    spread: Tensor  # () what the task's features vary by over its observations


@dataclass(frozen=True)
class RehearsalBuffer:
    """One task's observations, and the outputs its policy had at its stage's end."""

    task: str
    observations: Tensor  # (N, H, W, C) uint8, or (N, 3, features)
    outputs: Outputs
    checksum: str

    @property
    def spread(self) -> Tensor:
        """Root mean square, over features, of their std over observations; large enough to divide by."""
        return self.outputs.features.var(0, correction=0).mean().sqrt().clamp(min=1e-6)

    def shown(self) -> Rehearsal:
        """Return the first few observations, always the same."""
        return self._pick(torch.arange(min(SHOWN, len(self.observations))))

    def draw(self, rng: np.random.Generator, count: int) -> Rehearsal:
        """Draw observations uniformly."""
        return self._pick(torch.from_numpy(rng.integers(0, len(self.observations), size=count)))

    def _pick(self, places: Tensor) -> Rehearsal:
        outputs = Outputs(*(part[places] for part in self.outputs))
        return Rehearsal(self.task, self.observations[places], outputs, self.spread)


def store(file: Path, task: str, observations: Tensor, outputs: Outputs) -> RehearsalBuffer:
    """Write the rehearsal buffer of a task that has just been learnt."""
    on_host = Outputs(*(part.cpu() for part in outputs))
    data = pack({"observations": observations.cpu(), **dict(zip(STORED, on_host, strict=True))})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, data)
    except OSError as error:
        raise RunError(
            f"cannot write {file}: {reason(error)}; the checkpoints are intact, fix this and resume"
        ) from error
    return RehearsalBuffer(task, observations.cpu(), on_host, hashlib.sha256(data).hexdigest())


def load(file: Path, task: str, checksum: str, outputs: Callable[[str, Tensor], Outputs]) -> RehearsalBuffer:
    """Read what `store` wrote; a file that is not exactly that is a `CheckpointError`.

    `outputs` is the agent's function from observations to outputs: those stored must have its shapes.
    """
    try:
        data = read_bounded(file, TENSOR_BYTES)
    except OSError as error:
        raise CheckpointError(f"rehearsal buffer {file} cannot be read: {reason(error)}") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise CheckpointError(f"rehearsal buffer {file} is damaged: it is not what was saved")
    parts = unpack(file, data)
    try:
        shown, stored = parts.pop("observations"), Outputs(*(parts.pop(name) for name in STORED))
        if parts:
            raise ValueError(f"it has {', '.join(parts)} as well")
        found = RehearsalBuffer(task, shown, stored, checksum)
        _check_shapes(found, outputs(task, found.observations[:1]))
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        why = " ".join(f"{type(error).__name__} {error}".split())
        raise CheckpointError(f"rehearsal buffer {file} does not fit this run: {why}"[:300]) from None
    return found


def _check_shapes(found: RehearsalBuffer, expected: Outputs) -> None:
    count = len(found.observations)
    for name, part, now in zip(Outputs._fields, found.outputs, expected, strict=True):
        if not (count and part.is_floating_point() and part.shape == (count, *now.shape[1:])):
            raise ValueError(f"{name} are {part.dtype} {tuple(part.shape)}, not {count} times {tuple(now.shape[1:])}")


class RehearsalSampler:
    """Draws an old task, then observations of it, for every update."""

    def __init__(self, buffers: list[RehearsalBuffer], batch: int) -> None:
        self._buffers, self._batch = buffers, batch

    def draw(self, rng: np.random.Generator) -> Rehearsal:
        return self._buffers[int(rng.integers(len(self._buffers)))].draw(rng, self._batch)
