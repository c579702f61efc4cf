"""The page's tables and bars of forgetting and transfer: retests, probes, effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ctrlformer.analysis.continual_world import continual_world
from ctrlformer.analysis.metrics import SUITE_MAXIMUM, RunScores, forgetting, retest_change, retest_matrix
from ctrlformer.analysis.probes import transfer_matrix
from ctrlformer.analysis.statistics import SeedScore, Statistic
from ctrlformer.analysis.transfer import forward_transfer, from_scratch, scores_at_budget
from ctrlformer.report.charts import Group, groups
from ctrlformer.report.report_run import ReportRun


class Cell(NamedTuple):
    text: str
    level: float | None  # 0 to 1: how dark the cell is; none is empty


class RetestLine(NamedTuple):
    """A task's scores after every stage."""

    task: str
    cells: list[Cell]
    forgetting: str
    transfer: str


class Matrix(NamedTuple):
    """The retests of runs that differ in their seeds only: tasks by stages."""

    method: str
    seeds: int
    stages: list[str]
    lines: list[RetestLine]
    figures: dict[str, str]
    """Continual World's, by name, with intervals; those that are known."""


class ProbeLine(NamedTuple):
    """A policy's scores in new tasks, before these were learnt."""

    policy: str
    cells: list[Cell]


class ProbeMatrix(NamedTuple):
    """The probes of runs of one method: policies by new tasks."""

    method: str
    runs: int
    tasks: Sequence[str]
    lines: list[ProbeLine]
    starts: list[str]


class Effect(NamedTuple):
    """Retained scores of old tasks, and transfer to the next: the paper's Figure 1 in numbers."""

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


def retest_matrices(runs: Sequence[ReportRun]) -> list[Matrix]:
    """One for every method and curriculum of several stages."""
    found: dict[tuple[str, str, tuple[frozenset[str], ...]], list[RunScores]] = {}
    for run in runs:
        if run.scores is not None and len(run.scores.curriculum) > 1:
            key = (run.method, run.plain_method, tuple(run.scores.curriculum))
            found.setdefault(key, []).append(run.scores)
    every = groups(runs)
    return [_matrix(method, plain, same, every) for (method, plain, _), same in found.items()]


def _matrix(method: str, plain_method: str, runs: list[RunScores], every: Sequence[Group]) -> Matrix:
    stages = [" + ".join(task for task in runs[0].stages if task in group) for group in runs[0].curriculum]
    lines = []
    for row, task in enumerate(runs[0].stages):
        scores = np.array([retest_matrix(run)[row] for run in runs])  # (runs, stages)
        cells = [_cell(column[~np.isnan(column)].tolist()) for column in scores.T]
        forgotten = _known(forgetting(run, task) for run in runs)
        transfer = _forward_transfer(plain_method, task, runs, every)
        lines.append(RetestLine(task, cells, _mean_and_range(forgotten), transfer))
    scratch = [run for task in runs[0].stages for run in _scratch_runs(plain_method, task, every)]
    found = continual_world(runs, scratch)
    figures = {name: _two_decimals(one) for name, one in found.figures.items()} if found else {}
    return Matrix(method, len(runs), stages, lines, figures)


def probe_matrices(runs: Sequence[ReportRun]) -> list[ProbeMatrix]:
    """One for every method, over all of its runs, whatever their curriculum."""
    found: dict[str, list[RunScores]] = {}
    for run in runs:
        if run.scores is not None and run.scores.probes:
            found.setdefault(run.method, []).append(run.scores)
    matrices = []
    for method, probed in found.items():
        if matrix := transfer_matrix(probed):
            lines = [
                ProbeLine(one, [_cell(matrix.scores(one, task)) for task in matrix.tasks]) for one in matrix.policies
            ]
            starts = [matrix.starts_text(task) for task in matrix.tasks]
            matrices.append(ProbeMatrix(method, len(probed), matrix.tasks, lines, starts))
    return matrices


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
    found = Statistic.of(values)
    interval = found.mean_interval
    return f"{found.mean:.0f}" + (f" [{interval.low:.0f}, {interval.high:.0f}]" if interval else "")


def _two_decimals(found: Statistic) -> str:
    interval = found.mean_interval
    return f"{found.mean:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def _forward_transfer(plain_method: str, task: str, runs: Sequence[RunScores], every: Sequence[Group]) -> str:
    """(AUC - AUC_scratch) / (1 - AUC_scratch), where runs from scratch are among those of the page."""
    later = [run for run in runs if not from_scratch(run, task)]
    found = forward_transfer(later, _scratch_runs(plain_method, task, every), task) if later else None
    if found is None or found.comparison.mean is None:
        return ""
    interval = found.comparison.mean_interval
    return f"{found.comparison.mean:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def _scratch_runs(plain_method: str, task: str, every: Sequence[Group]) -> list[RunScores]:
    """Runs of the method that learn the task first and alone."""
    same = [group for group in every if (group.plain_method, group.task, group.before) == (plain_method, task, ())]
    return [run for group in same for run in group.runs if from_scratch(run, task)]


def effects(runs: Sequence[ReportRun]) -> list[Effect]:
    """Every task that was learnt after others, beside the same task from scratch at the same number of frames."""
    every = groups(runs)
    return [_effect(group, _scratch_runs(group.plain_method, group.task, every)) for group in every if group.before]


def _effect(group: Group, scratch: Sequence[RunScores]) -> Effect:
    scores = scores_at_budget(group.runs, scratch, group.task)
    kept = _known(
        change.ratio for run in group.runs for old in group.before if (change := retest_change(run, old)) is not None
    )
    return Effect(
        group.method,
        group.task,
        " and ".join(group.before),
        len(group.runs),
        f"{100 * float(np.mean(kept)):.0f} %" if kept else "not retested",
        min(1.0, max(0.0, float(np.mean(kept)))) if kept else None,
        scores.budget if scores else None,
        _mean(scores.transfer) or 0.0 if scores else 0.0,
        _mean(scores.scratch) if scores else None,
        len(scores.scratch) if scores else 0,
    )


def _mean(scores: Sequence[SeedScore]) -> float | None:
    return float(np.mean([one.score for one in scores])) if scores else None


def _known(values: object) -> list[float]:
    return [value for value in values if value is not None]  # type: ignore[attr-defined]
