"""Observations of a finished task, kept with what its policy made of them: they show whether it is being forgotten.

A file per task in the run folder, `kept/<task>.safetensors`; its checksum stands in every later checkpoint.
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
    """What a task's policy makes of observations."""

    features: Tensor  # (N, F)
    action: Tensor  # (N, A) mean action
    deviation: Tensor  # (N, A) of the Gaussian before tanh


class Rehearsal(NamedTuple):
    """Kept observations for one update."""

    task: str
    observations: Tensor  # (R, H, W, C) uint8, or (R, 3, features)
    outputs: Outputs
    spread: Tensor  # () what the task's features vary by over its observations


@dataclass(frozen=True)
class Kept:
    """One task's kept observations, and the outputs its policy had at its stage's end."""

    task: str
    observations: Tensor  # (N, H, W, C) uint8, or (N, 3, features)
    outputs: Outputs
    checksum: str

    @property
    def spread(self) -> Tensor:
        """Root mean square, over features, of their deviation over observations; never so small as to divide by."""
        return self.outputs.features.var(0, correction=0).mean().sqrt().clamp(min=1e-6)

    def shown(self) -> Rehearsal:
        """The first few observations, always the same."""
        return self._pick(torch.arange(min(SHOWN, len(self.observations))))

    def draw(self, rng: np.random.Generator, count: int) -> Rehearsal:
        """Observations drawn uniformly."""
        return self._pick(torch.from_numpy(rng.integers(0, len(self.observations), size=count)))

    def _pick(self, places: Tensor) -> Rehearsal:
        outputs = Outputs(*(part[places] for part in self.outputs))
        return Rehearsal(self.task, self.observations[places], outputs, self.spread)


def keep(file: Path, task: str, observations: Tensor, outputs: Outputs) -> Kept:
    """Write observations of a task that has just been learnt."""
    on_host = Outputs(*(part.cpu() for part in outputs))
    data = pack({"observations": observations.cpu(), **on_host._asdict()})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, data)
    except OSError as error:
        raise RunError(
            f"cannot write {file}: {reason(error)}; the checkpoints are intact, mend this and resume"
        ) from error
    return Kept(task, observations.cpu(), on_host, hashlib.sha256(data).hexdigest())


def load(file: Path, task: str, checksum: str, outputs: Callable[[str, Tensor], Outputs]) -> Kept:
    """Read what `keep` wrote; a file that is not exactly that is a `CheckpointError`.

    `outputs` is what the agent makes of observations now: what was kept must have its shapes.
    """
    try:
        data = read_bounded(file, TENSOR_BYTES)
    except OSError as error:
        raise CheckpointError(f"kept observations {file} cannot be read: {reason(error)}") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise CheckpointError(f"kept observations {file} are damaged: they are not what was saved")
    parts = unpack(file, data)
    try:
        found = Kept(task, parts.pop("observations"), Outputs(**parts), checksum)
        _check_shapes(found, outputs(task, found.observations[:1]))
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        why = " ".join(f"{type(error).__name__} {error}".split())
        raise CheckpointError(f"kept observations {file} do not fit this run: {why}"[:300]) from None
    return found


def _check_shapes(found: Kept, expected: Outputs) -> None:
    count = len(found.observations)
    for name, part, now in zip(Outputs._fields, found.outputs, expected, strict=True):
        if not (count and part.is_floating_point() and part.shape == (count, *now.shape[1:])):
            raise ValueError(f"{name} are {part.dtype} {tuple(part.shape)}, not {count} times {tuple(now.shape[1:])}")


class Rehearser:
    """Draws an old task, then observations of it, for every update."""

    def __init__(self, kept: list[Kept], batch: int) -> None:
        self._kept, self._batch = kept, batch

    def draw(self, rng: np.random.Generator) -> Rehearsal:
        return self._kept[int(rng.integers(len(self._kept)))].draw(rng, self._batch)
