"""How far a curriculum is: what a checkpoint stores, beside the agent and the replays, to resume from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class TaskProgress:
    """How far one task of the stage under way is."""

    frames: int = 0
    steps: int = 0
    updates: int = 0
    """Of this stage."""
    evaluated: int | None = None
    """Its frames at its last evaluation."""
    probe_steps: int = 0
    """Of `steps`, those that old policies played in probes before the task was learnt."""


@dataclass
class TrainingProgress:
    """How far the whole curriculum is."""

    stage: int = 0
    """Number of the stage; equal to the number of stages when all is learnt."""
    tasks: list[TaskProgress] = field(default_factory=list)
    """Of the stage under way; empty before it begins."""
    retested: int | None = None
    """Frames of this stage at its last retest of earlier tasks."""
    retests: int = 0
    """Earlier tasks that the retest under way has done."""
    earlier_frames: int = 0
    """Frames and steps of the stages before."""
    earlier_steps: int = 0
    minutes: float = 0.0
    """Wall-clock minutes of training so far, over all resumes."""

    @property
    def frames(self) -> int:
        """All frames so far, of every stage and task."""
        return self.earlier_frames + sum(task.frames for task in self.tasks)

    @property
    def steps(self) -> int:
        return self.earlier_steps + sum(task.steps for task in self.tasks)

    def next_stage(self) -> TrainingProgress:
        return TrainingProgress(
            stage=self.stage + 1, earlier_frames=self.frames, earlier_steps=self.steps, minutes=self.minutes
        )


@dataclass
class Averages:
    """Means of metrics since the last log row; not every metric comes with every update."""

    sums: dict[str, float | Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float | Tensor]) -> None:
        """Tensors are summed where they are, in double precision: no waiting for a device."""
        for name, value in metrics.items():
            precise = value.double() if isinstance(value, Tensor) else value
            self.sums[name] = self.sums.get(name, 0.0) + precise
            self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """The means, in alphabetical order; counting starts anew."""
        means = {name: float(self.sums[name]) / self.counts[name] for name in sorted(self.sums)}
        self.sums, self.counts = {}, {}
        return means
