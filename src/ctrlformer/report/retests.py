"""What the page's tables and bars say: how well tasks are kept, and what earlier ones helped."""

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
    forgetting,
    learning_curve,
    normalised_gain,
    retest_change,
    retest_matrix,
    score_at,
)
from ctrlformer.analysis.statistics import SeedScore, Statistic, compare
from ctrlformer.report.charts import Group, groups
from ctrlformer.report.report_run import ToldRun


class Cell(NamedTuple):
    text: str
    level: float | None  # 0 to 1: how dark the cell is; none is empty


class Line(NamedTuple):
    task: str
    cells: list[Cell]
    forgetting: str
    transfer: str


class Matrix(NamedTuple):
    """The retests of runs that differ in their seeds only: tasks by stages."""

    method: str
    seeds: int
    stages: list[str]
    lines: list[Line]


class Effect(NamedTuple):
    """What a method keeps of old tasks, and what these help it with the next: the paper's Figure 1 in numbers."""

    method: str
    task: str
    before: str
    seeds: int
    kept: str  # last retests as a part of what the old tasks scored at their own end
    kept_share: float | None  # 0 to 1, for the bar
    frames: int | None
    transfer: float
    scratch: float | None
    scratch_seeds: int


def retest_matrices(runs: Sequence[ToldRun]) -> list[Matrix]:
    """One for every method and curriculum of several stages."""
    found: dict[tuple[str, tuple[frozenset[str], ...]], list[RunScores]] = {}
    for run in runs:
        if run.scores is not None and len(run.scores.curriculum) > 1:
            found.setdefault((run.method, tuple(run.scores.curriculum)), []).append(run.scores)
    every = groups(runs)
    return [_matrix(method, same, every) for (method, _), same in found.items()]


def _matrix(method: str, runs: list[RunScores], every: Sequence[Group]) -> Matrix:
    stages = [" + ".join(task for task in runs[0].stages if task in group) for group in runs[0].curriculum]
    lines = []
    for row, task in enumerate(runs[0].stages):
        scores = np.array([retest_matrix(run)[row] for run in runs])  # (runs, stages)
        cells = [_cell(column[~np.isnan(column)].tolist()) for column in scores.T]
        forgotten = _known(forgetting(run, task) for run in runs)
        lines.append(Line(task, cells, _mean_and_range(forgotten), _forward_transfer(method, task, runs, every)))
    return Matrix(method, len(runs), stages, lines)


def _cell(scores: Sequence[float]) -> Cell:
    if not scores:
        return Cell("", None)
    mean, std = float(np.mean(scores)), float(np.std(scores))
    text = f"{mean:.0f} ± {std:.0f}" if len(scores) > 1 else f"{mean:.0f}"
    return Cell(text, min(1.0, max(0.0, mean / SUITE_MAXIMUM)))


def _mean_and_range(values: Sequence[float]) -> str:
    """The mean, and its 95 % interval over seeds."""
    if not values:
        return ""
    told = Statistic.of(values)
    interval = told.mean_interval
    return f"{told.mean:.0f}" + (f" [{interval.low:.0f}, {interval.high:.0f}]" if interval else "")


def _forward_transfer(method: str, task: str, runs: Sequence[RunScores], every: Sequence[Group]) -> str:
    """(AUC - AUC_scratch) / (1 - AUC_scratch), where runs from scratch are among those told of."""
    own = next((group for group in every if (group.method, group.task) == (method, task) and group.before), None)
    scratch = _scratch_of(own, every) if own else None
    if own is None or scratch is None:
        return ""
    curves = [learning_curve(run, task) for run in (*runs, *scratch.runs)]
    span = common_range(curves)
    if span is None:
        return ""
    first, second = (
        [SeedScore(run.seed, area(learning_curve(run, task), *span)) for run in side] for side in (runs, scratch.runs)
    )
    found = compare(first, second, normalised_gain)
    interval = found.mean_interval
    text = "" if found.mean is None else f"{found.mean:.2f}"
    return text + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def _scratch_of(group: Group, every: Sequence[Group]) -> Group | None:
    wanted = (group.plain_method, group.task, ())
    return next((one for one in every if (one.plain_method, one.task, one.before) == wanted), None)


def effects(runs: Sequence[ToldRun]) -> list[Effect]:
    """Every task that was learnt after others, beside the same task from scratch at the same number of frames."""
    every = groups(runs)
    return [_effect(group, _scratch_of(group, every)) for group in every if group.before]


def _effect(group: Group, scratch: Group | None) -> Effect:
    ends = [evaluation_at(run, group.task) for run in (*group.runs, *(scratch.runs if scratch else []))]
    budget = min((end.frames for end in ends if end), default=None)
    kept = _known(
        change.ratio for run in group.runs for old in group.before if (change := retest_change(run, old)) is not None
    )
    transfer = _known(score_at(run, group.task, budget) for run in group.runs)
    alone = _known(score_at(run, group.task, budget) for run in scratch.runs) if scratch else []
    return Effect(
        group.method,
        group.task,
        " and ".join(group.before),
        len(group.runs),
        f"{100 * float(np.mean(kept)):.0f} %" if kept else "not retested",
        min(1.0, max(0.0, float(np.mean(kept)))) if kept else None,
        budget,
        float(np.mean(transfer)) if transfer else 0.0,
        float(np.mean(alone)) if alone else None,
        len(alone),
    )


def _known(values: object) -> list[float]:
    return [value for value in values if value is not None]  # type: ignore[attr-defined]
