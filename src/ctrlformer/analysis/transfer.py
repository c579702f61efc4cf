"""Transfer against scratch: what a task gains from being learnt after, or together with, other tasks.

`scores`, the report and the tables beside the paper all take it from here. Both sides are compared at the same frames:
scores at the given budget, or where the shortest run ends if that is earlier; curves over the frames that all of them
span. A gain is a measure of the means of both sides, with intervals over seeds (`statistics.compare`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ctrlformer.analysis.metrics import (
    SUITE_MAXIMUM,
    RunScores,
    area,
    common_range,
    evaluation_at,
    learning_curve,
)
from ctrlformer.analysis.statistics import Array, Comparison, Measure, SeedScore, compare


class TransferGain(NamedTuple):
    """One measure of a task learnt by transfer beside the same task learnt from scratch."""

    comparison: Comparison
    frames: tuple[int, int]
    """Of the earliest and the latest evaluation that is compared, or from where to where curves are."""


class ScoresAtBudget(NamedTuple):
    """Scores of one task on both sides at the same budget."""

    budget: int
    transfer: list[SeedScore]
    scratch: list[SeedScore]
    frames: tuple[int, int]
    """Of the earliest and the latest evaluation among them."""

    def gain(self, measure: Measure) -> TransferGain | None:
        """None if one side has no score so early."""
        if not self.transfer or not self.scratch:
            return None
        return TransferGain(compare(self.transfer, self.scratch, measure), self.frames)


def from_scratch(run: RunScores, task: str) -> bool:
    """Whether the task is the only one of the run's first stage."""
    return run.stages.get(task) == 0 and run.curriculum[0] == {task}


def scores_at_budget(
    transfer: Sequence[RunScores], scratch: Sequence[RunScores], task: str, frames: int | None = None
) -> ScoresAtBudget | None:
    """Score both sides at `frames`, or where the shortest run ends if that is earlier; None without evaluations."""
    ends = [row.frames for run in (*transfer, *scratch) if (row := evaluation_at(run, task))]
    if not ends:
        return None
    budget = min(ends) if frames is None else min(frames, *ends)
    counts: list[int] = []

    def side(runs: Sequence[RunScores]) -> list[SeedScore]:
        rows = [(run.seed, row) for run in runs if (row := evaluation_at(run, task, budget))]
        counts.extend(row.frames for _, row in rows)
        return [SeedScore(seed, row.score) for seed, row in rows]

    sides = side(transfer), side(scratch)
    return ScoresAtBudget(budget, *sides, (min(counts), max(counts))) if counts else None


def forward_transfer(
    transfer: Sequence[RunScores],
    scratch: Sequence[RunScores],
    task: str,
    frames: int | None = None,
    maximum: float = SUITE_MAXIMUM,
) -> TransferGain | None:
    """Continual World's (AUC - AUC_scratch) / (1 - AUC_scratch), over the frames that all curves span.

    1 is a perfect curve from the first frame on, 0 no gain. None if the curves share no stretch of frames; the measure
    itself is not defined for AUC_scratch >= 1, which leaves nothing to gain.
    """
    curves = [[(run.seed, learning_curve(run, task, frames)) for run in runs] for runs in (transfer, scratch)]
    shared = common_range([curve for side in curves for _, curve in side])
    if shared is None or not all(curves):
        return None
    ours, theirs = ([SeedScore(seed, area(curve, *shared, maximum)) for seed, curve in side] for side in curves)
    return TransferGain(compare(ours, theirs, normalised_gain), (int(shared[0]), int(shared[1])))


# Measures of two scores, elementwise: NaN where they are not defined


def difference(transfer: Array, scratch: Array) -> Array:
    """transfer - scratch."""
    return transfer - scratch


def percent_of_scratch(transfer: Array, scratch: Array) -> Array:
    """100 * (transfer - scratch) / scratch, NaN for scratch <= 0.

    >>> percent_of_scratch(np.array([657.0, 769.0]), np.array([548.0, 0.0])).round(2).tolist()
    [19.89, nan]
    """
    with np.errstate(over="ignore"):  # a scratch score next to 0: infinite, and so not defined
        return np.asarray(100 * ((transfer - scratch) / np.where(scratch > 0, scratch, np.nan)))


def normalised_gain(transfer: Array, scratch: Array) -> Array:
    """(transfer - scratch) / (1 - scratch), NaN for scratch >= 1."""
    return np.asarray((transfer - scratch) / np.where(scratch < 1, 1 - scratch, np.nan))
