"""Measures of one run, from the rows of its evals.jsonl alone: scores, retests, forgetting and learning curves.

`read_run` takes any folder with an evals.jsonl, also one whose settings are of another version. A measure is None
where the run has not measured it; `statistics` has them over seeds, `transfer` beside runs from scratch.
docs/metrics.md lists the formulas.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrlformer.analysis.statistics import Array
from ctrlformer.errors import RunError
from ctrlformer.storage.files import JSON, reason
from ctrlformer.storage.run_folder import CONFIG, EVALS, read_object, read_rows

KINDS = LEARN, FINAL, RETEST = "learn", "final", "retest"
PROBE = "probe"  # an old policy, or random actions, tried in a new task: no score of an agent
SUITE_MAXIMUM = 1000.0  # return of a perfect episode in the DeepMind Control Suite
LARGEST_COUNT = 1 << 53  # frames are exact as floats up to here
LARGEST_RETURN = 1e100  # its square is still a float


class Evaluation(NamedTuple):
    """One row of evals.jsonl. A retest has the number and frames of the stage under way, and an old task's name."""

    stage: int
    task: str
    kind: str
    frames: int
    score: float


class ProbeScore(NamedTuple):
    """A row of evals.jsonl of kind probe: how a policy did in a task before that was learnt."""

    task: str
    policy: str  # the old task whose policy it is, or that the actions were random
    score: float
    start: str  # what the task then started from, in words


@dataclass(frozen=True)
class RunScores:
    """The evaluations of one run, in the order they were made."""

    name: str
    seed: int | None
    """None where the folder does not say."""
    rows: tuple[Evaluation, ...]
    probes: tuple[ProbeScore, ...] = ()

    @classmethod
    def of(cls, name: str, seed: int | None, rows: Iterable[Mapping[str, JSON]]) -> RunScores:
        """From JSON rows in any order; one that makes no sense is a `RunError`."""
        checked, probes = [], []
        for number, row in enumerate(rows, start=1):
            where = f"{name}, evaluation {number}"
            if row.get("kind") == PROBE:
                probes.append(_probe(where, row))
            else:
                checked.append(_evaluation(where, row))
        if not checked:
            raise RunError(f"{name} has no evaluations yet")
        run = cls(name, seed, tuple(sorted(checked, key=lambda row: (row.stage, row.frames))), tuple(probes))
        _check_stages(run)
        return run

    @cached_property
    def stages(self) -> dict[str, int]:
        """The stage each task is learnt in, in the order of learning."""
        stages: dict[str, int] = {}
        for row in self.rows:
            if row.kind != RETEST:
                stages.setdefault(row.task, row.stage)
        return stages

    @property
    def curriculum(self) -> list[frozenset[str]]:
        """The tasks of every stage."""
        numbers = sorted(set(self.stages.values()))
        return [frozenset(task for task, stage in self.stages.items() if stage == number) for number in numbers]

    @property
    def finished(self) -> bool:
        """Whether the last stage has come to its end."""
        return all(final_score(self, task) is not None for task in self.curriculum[-1])

    def of_task(self, task: str, *kinds: str) -> list[Evaluation]:
        return [row for row in self.rows if row.task == task and row.kind in kinds]


class RetestChange(NamedTuple):
    """An old task's score at the end of its own stage and in its last retest."""

    before: float
    after: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """None unless the score before was positive.

        >>> RetestChange(800.0, 600.0).ratio, RetestChange(0.0, 600.0).ratio
        (0.75, None)
        """
        ratio = self.after / self.before if self.before > 0 else math.inf
        return ratio if math.isfinite(ratio) else None


class Curve(NamedTuple):
    """Scores over a task's frames, which rise strictly; between two evaluations the curve is a straight line."""

    frames: Array
    scores: Array


def read_run(folder: Path) -> RunScores:
    """The evaluations and the seed of a run folder; its other settings may be of any version."""
    try:
        if not folder.is_dir():
            raise RunError(f"no run folder at {folder}: check the path")
    except OSError as error:
        raise RunError(f"cannot read {folder}: {reason(error)}") from error
    return RunScores.of(str(folder), _read_seed(folder / CONFIG), read_rows(folder / EVALS))


def evaluation_at(run: RunScores, task: str, budget: int | None = None) -> Evaluation | None:
    """The last evaluation of a task's own stage at or before that many of its frames; no budget takes the last."""
    rows = [row for row in run.of_task(task, LEARN, FINAL) if budget is None or row.frames <= budget]
    return rows[-1] if rows else None


def score_at(run: RunScores, task: str, budget: int | None = None) -> float | None:
    """The score of `evaluation_at`; None if there is no evaluation so early."""
    row = evaluation_at(run, task, budget)
    return row.score if row else None


def final_score(run: RunScores, task: str) -> float | None:
    """What the task scored at the end of its own stage."""
    finals = run.of_task(task, FINAL)
    return finals[-1].score if finals else None


def retest_change(run: RunScores, task: str) -> RetestChange | None:
    """The last retest beside the task's own final evaluation; None without one of them."""
    before, retests = final_score(run, task), run.of_task(task, RETEST)
    return RetestChange(before, retests[-1].score) if before is not None and retests else None


def forgetting(run: RunScores, task: str) -> float | None:
    """max(final, retests before the last) - last retest; None without final or retest.

    Below 0 the last retest is the best of all: later tasks have helped.
    """
    before, retests = final_score(run, task), run.of_task(task, RETEST)
    if before is None or not retests:
        return None
    return max([before, *(row.score for row in retests[:-1])]) - retests[-1].score


def mean_forgetting(run: RunScores) -> float | None:
    """Average over the tasks of all stages but the last; None if one is not measured, or there is none."""
    last = max(run.stages.values())
    each = [forgetting(run, task) for task, stage in run.stages.items() if stage < last]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if known and len(known) == len(each) else None


def average_over_tasks(run: RunScores) -> float:
    """Mean of every task's newest score, of whatever kind; without retests old tasks count as they were learnt."""
    newest = {row.task: row.score for row in run.rows}
    return float(np.mean(list(newest.values())))


def retest_matrix(run: RunScores) -> Array:
    """Tasks by stages, both in the order of learning: own final on the diagonal, then each stage's last retest.

    NaN where nothing was measured. Tasks that are learnt together have their finals in the same column.
    """
    numbers = sorted(set(run.stages.values()))
    matrix = np.full((len(run.stages), len(numbers)), np.nan)
    line = {task: index for index, task in enumerate(run.stages)}
    for row in run.rows:
        if row.kind != LEARN and row.stage in numbers:
            matrix[line[row.task], numbers.index(row.stage)] = row.score
    return matrix


def common_curriculum(runs: Sequence[RunScores]) -> RunScores:
    """The run that got furthest; a `RunError` if another learns other tasks, or in another order."""
    longest = max(runs, key=lambda run: len(run.curriculum))
    for run in runs:
        if run.curriculum != longest.curriculum[: len(run.curriculum)]:
            raise RunError(f"{run.name} and {longest.name} learn other tasks, or in another order: score them apart")
    return longest


def retest_cells(runs: Sequence[RunScores]) -> list[list[str]]:
    """The retest matrix over runs as text, headings first; runs that stopped early count as far as they got."""
    longest = common_curriculum(runs)
    tasks = list(longest.stages)
    stages = [" + ".join(task for task in tasks if task in group) for group in longest.curriculum]
    cells = [["task", *(f"after {stage}" for stage in stages)]]
    matrices = [(list(run.stages), retest_matrix(run)) for run in runs]
    for task in tasks:
        lines = [matrix[names.index(task)] for names, matrix in matrices if task in names]
        columns = [[line[stage] for line in lines if stage < line.size] for stage in range(len(stages))]
        cells.append([task, *(score_cell(column) for column in columns)])
    return cells


def retest_matrix_markdown(runs: Sequence[RunScores]) -> str:
    """The retest matrix as Markdown: mean over runs, with the std over runs where there are several.

    >>> row = {"stage": 0, "task": "toy/reach", "kind": "final", "frames": 100, "mean": 3.0}
    >>> print(retest_matrix_markdown([RunScores.of("a", 1, [row]), RunScores.of("b", 2, [row | {"mean": 5.0}])]))
    | task | after toy/reach |
    |---|---|
    | toy/reach | 4.0 ± 1.0 |
    """
    return markdown(retest_cells(runs))


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first line of cells are its headings."""
    headings, *lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
    return "\n".join([headings, "|" + "---|" * len(cells[0]), *lines])


def learning_curve(run: RunScores, task: str, budget: int | None = None) -> Curve:
    """The evaluations of a task's own stage up to that many frames; of two at the same frame the later one."""
    points = {
        row.frames: row.score for row in run.of_task(task, LEARN, FINAL) if budget is None or row.frames <= budget
    }
    return Curve(np.array(list(points), dtype=np.float64), np.array(list(points.values()), dtype=np.float64))


def common_range(curves: Sequence[Curve]) -> tuple[float, float] | None:
    """The frames that all curves span; None if they share less than a stretch."""
    if not curves or any(not curve.frames.size for curve in curves):
        return None
    low, high = max(curve.frames[0] for curve in curves), min(curve.frames[-1] for curve in curves)
    return (float(low), float(high)) if low < high else None


def area(curve: Curve, low: float, high: float, maximum: float = SUITE_MAXIMUM) -> float:
    """Mean height of the curve between two frames, as a part of the maximum: by trapezoids, exact for straight lines.

    >>> area(Curve(np.array([0.0, 100.0]), np.array([0.0, 1000.0])), 0.0, 50.0)
    0.25
    """
    inside = curve.frames[(curve.frames > low) & (curve.frames < high)]
    frames = np.concatenate([[low], inside, [high]])
    scores = np.interp(frames, curve.frames, curve.scores)
    return float(np.trapezoid(scores, frames) / ((high - low) * maximum))


def score_cell(scores: Sequence[float]) -> str:
    """Mean over runs, with the std over runs where there are several; empty without one."""
    known = np.array([score for score in scores if not math.isnan(score)])
    if not known.size:
        return ""
    return f"{known.mean():.1f} ± {known.std():.1f}" if known.size > 1 else f"{known[0]:.1f}"


def _read_seed(path: Path) -> int | None:
    seed = (read_object(path) or {}).get("seed")
    if seed is not None and type(seed) is not int:
        raise RunError(f"{path}: seed is {reprlib.repr(seed)}, not a whole number")
    return seed


def _evaluation(where: str, row: Mapping[str, JSON]) -> Evaluation:
    """One row, checked."""
    stage, frames = (_count(where, name, row.get(name)) for name in ("stage", "frames"))
    task, kind = _name(where, "task", row.get("task")), row.get("kind")
    if kind not in KINDS:
        raise RunError(f"{where}: kind is {reprlib.repr(kind)}, not one of {', '.join((*KINDS, PROBE))}")
    return Evaluation(stage, task, kind, frames, _return(where, row.get("mean")))


def _probe(where: str, row: Mapping[str, JSON]) -> ProbeScore:
    task, policy, chosen = (_name(where, name, row.get(name)) for name in ("task", "source", "chosen"))
    start = f"{chosen} with {'its' if row.get('heads') is True else 'new'} heads"
    return ProbeScore(task, policy, _return(where, row.get("mean")), start)


def _name(where: str, name: str, value: JSON) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise RunError(f"{where}: {name} is {reprlib.repr(value)}, not the name of a task")
    return value


def _return(where: str, value: JSON) -> float:
    if type(value) not in (int, float) or not abs(value) < LARGEST_RETURN:  # which is also false for NaN
        raise RunError(f"{where}: mean is {reprlib.repr(value)}, not a return")
    return float(value)


def _count(where: str, name: str, value: JSON) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise RunError(f"{where}: {name} is {reprlib.repr(value)}, not a count")
    return value


def _check_stages(run: RunScores) -> None:
    """A task is learnt in one stage and retested in later ones: every measure relies on it."""
    for row in run.rows:
        own = run.stages.get(row.task)
        if row.kind != RETEST and row.stage != own:
            raise RunError(f"{run.name}: task {row.task!r} is learnt in stages {own} and {row.stage}, not in one")
        if row.kind == RETEST and (own is None or own >= row.stage):
            raise RunError(f"{run.name}: task {row.task!r} is retested in stage {row.stage}, but not learnt before it")
