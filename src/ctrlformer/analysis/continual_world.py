"""Continual World's three figures (Wolczyk et al. 2021), one value of each for every run of a whole sequence.

Scores are divided by the maximum, so that all three are parts of 1. docs/metrics.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctrlformer.analysis.metrics import (
    FINAL,
    RETEST,
    SUITE_MAXIMUM,
    RunScores,
    area,
    common_range,
    final_score,
    learning_curve,
)
from ctrlformer.analysis.statistics import Statistic
from ctrlformer.analysis.transfer import from_scratch

NAMES = PERFORMANCE, FORGETTING, TRANSFER = "performance", "forgetting", "forward transfer"


@dataclass(frozen=True)
class ContinualWorld:
    """The figures over the runs that have measured them; None where no run has."""

    performance: Statistic | None
    forgetting: Statistic | None
    forward_transfer: Statistic | None

    @property
    def figures(self) -> dict[str, Statistic]:
        """Those that are known, by name."""
        every = zip(NAMES, (self.performance, self.forgetting, self.forward_transfer), strict=True)
        return {name: figure for name, figure in every if figure is not None}


def continual_world(
    runs: Sequence[RunScores], scratch: Sequence[RunScores] = (), maximum: float = SUITE_MAXIMUM
) -> ContinualWorld | None:
    """Of runs of one sequence; None unless one of them has several stages and came to the end of them."""
    whole = [run for run in runs if run.finished and len(run.curriculum) > 1]
    if not whole:
        return None
    return ContinualWorld(
        _statistic([performance(run, maximum) for run in whole]),
        _statistic([sequence_forgetting(run, maximum) for run in whole]),
        _statistic([sequence_transfer(run, scratch, maximum) for run in whole]),
    )


def performance(run: RunScores, maximum: float = SUITE_MAXIMUM) -> float | None:
    """Mean over tasks of the score at the sequence's end; None if an earlier task was not retested then."""
    ends = _scores_at_the_end(run)
    return None if len(ends) < len(run.stages) else float(np.mean(list(ends.values()))) / maximum


def sequence_forgetting(run: RunScores, maximum: float = SUITE_MAXIMUM) -> float | None:
    """Mean over tasks of the score at the end of their own stage minus that at the sequence's end; the last stage's
    tasks have forgotten nothing, and count."""
    ends = _scores_at_the_end(run)
    own = {task: final_score(run, task) for task in run.stages}
    lost = [score - ends[task] for task, score in own.items() if score is not None and task in ends]
    return None if len(lost) < len(run.stages) else float(np.mean(lost)) / maximum


def sequence_transfer(run: RunScores, scratch: Sequence[RunScores], maximum: float = SUITE_MAXIMUM) -> float | None:
    """Mean over tasks of (AUC - AUC_scratch) / (1 - AUC_scratch), AUC_scratch being the mean over runs from scratch;
    tasks that are themselves learnt from scratch have nothing to gain from, and count as 0. None without scratch runs
    of every other task."""
    gains = [0.0 if from_scratch(run, task) else _gain(run, scratch, task, maximum) for task in run.stages]
    known = [gain for gain in gains if gain is not None]
    return float(np.mean(known)) if len(known) == len(gains) else None


def _gain(run: RunScores, scratch: Sequence[RunScores], task: str, maximum: float) -> float | None:
    ours, theirs = learning_curve(run, task), [learning_curve(one, task) for one in scratch if from_scratch(one, task)]
    shared = common_range([ours, *theirs])
    if shared is None or not theirs:
        return None
    alone = float(np.mean([area(curve, *shared, maximum) for curve in theirs]))
    return (area(ours, *shared, maximum) - alone) / (1 - alone) if alone < 1 else None


def _scores_at_the_end(run: RunScores) -> Mapping[str, float]:
    """Finals and retests of the last stage; of several retests of a task the last."""
    last = max(run.stages.values())
    return {row.task: row.score for row in run.rows if row.stage == last and row.kind in (FINAL, RETEST)}


def _statistic(values: Sequence[float | None]) -> Statistic | None:
    known = [value for value in values if value is not None]
    return Statistic.of(known) if known else None
