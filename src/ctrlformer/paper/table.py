"""What an experiment's runs reached, line by line beside the paper's scores and those of other public systems.

Everything of ours is computed from the evals.jsonl of finished runs, by the package `analysis`. A flag on a
line says why its two sides should not be compared as they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ctrlformer.analysis.metrics import (
    RETEST,
    RunScores,
    evaluation_at,
    learning_curve,
    read_run,
    retest_change,
)
from ctrlformer.analysis.statistics import Array, Comparison, Interval, Measure, SeedScore, Statistic, compare
from ctrlformer.analysis.transfer import difference, percent_of_scratch, scores_at_budget
from ctrlformer.paper.experiments import PAPER_FRAMES, Curriculum
from ctrlformer.paper.plan import RUNS, Plan, PlannedRun, state_of
from ctrlformer.paper.references import PUBLIC_FRAMES, PaperScore, PublicScore, doubt, paper_scores, public_scores

SCRATCH, TRANSFER, RETESTED, TOGETHER, SEQUENTIAL = "scratch", "transfer", "retest", "together", "sequential"
MAINTAINABILITY, GAIN, TRANSFERABILITY = "maintainability, %", "transfer - scratch", "transferability, %"
FORMULAS = {
    MAINTAINABILITY: "100 * retest / score before: what is left of the first task after the second",
    GAIN: "score of the second task after the first, less its score from scratch at the same frames",
    TRANSFERABILITY: "100 * (transfer - scratch) / scratch at the same frames; undefined where scratch scored 0",
}


@dataclass(frozen=True)
class Ours:
    """A score over seeds, or a measure of two."""

    seeds: int
    mean: float | None
    """None where a ratio is not defined."""
    std: float | None
    """None for comparisons of two groups of runs."""
    iqm: float | None
    mean_interval: Interval | None
    iqm_interval: Interval | None
    frames: tuple[int, int]
    """Of the earliest and the latest evaluation among the runs."""

    @classmethod
    def of(cls, found: Statistic | Comparison, frames: Sequence[int]) -> Ours:
        seeds = found.runs if isinstance(found, Statistic) else min(found.transfer_runs, found.scratch_runs)
        std = found.std if isinstance(found, Statistic) else None
        span = min(frames), max(frames)
        return cls(seeds, found.mean, std, found.iqm, found.mean_interval, found.iqm_interval, span)


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    paper: PaperScore
    """With the paper's score, or without one where it prints none."""
    ours: Ours | None
    """None while no run has measured it."""
    public: tuple[PublicScore, ...]
    flags: tuple[str, ...]


def make_lines(plan: Plan, out: Path) -> list[Line]:
    """Every score of the experiment that the plan's runs can tell, and the effects if it is about them."""
    results = Results(plan, out)
    lines = [line for score in _asked(plan) if (line := results.score_line(score))]
    return [*lines, *results.effect_lines(lines)] if plan.choice.experiment.effects else lines


def _asked(plan: Plan) -> list[PaperScore]:
    """The scores that the paper prints, or for curves those at its budgets."""
    experiment = plan.choice.experiment
    if experiment.paper_rows is not None:
        return paper_scores(experiment.paper_rows)
    return [
        score
        for method, curriculum in product(experiment.methods, experiment.curricula)
        for score in _unprinted(method, curriculum)
    ]


def _unprinted(method: str, curriculum: Curriculum) -> Iterator[PaperScore]:
    first, second = curriculum.tasks
    for frames in PUBLIC_FRAMES:
        yield PaperScore(method, second, TRANSFER, frames, None, None, first)
    yield PaperScore(method, first, RETESTED, PAPER_FRAMES, None, None, second)


class Results:
    """The finished runs of a plan, read once."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan, self._out = plan, out
        self._read: dict[str, RunScores | None] = {}

    def score_line(self, score: PaperScore) -> Line | None:
        """None if the plan does not include it."""
        curriculum = self._curriculum(score)
        if curriculum is None or not self._planned(score.method, curriculum):
            return None
        evaluations = [found for run in self._runs(score.method, curriculum) if (found := self._evaluation(run, score))]
        ours = None
        if evaluations:
            ours = Ours.of(Statistic.of([one for one, _ in evaluations]), [frames for _, frames in evaluations])
        flags = [doubt(score), self._short_budget(score, ours), self._stand_in(score.task, score.source)]
        return Line(score, ours, tuple(public_scores(score.task)), tuple(flag for flag in flags if flag))

    def effect_lines(self, lines: Sequence[Line]) -> Iterator[Line]:
        """Maintainability and transferability of every pair of tasks, as far as the table has both their scores."""
        printed = {(*line.paper[:4], line.paper.source): line.paper for line in lines}
        for line in lines:
            score = line.paper
            if score.protocol == RETESTED:
                before = printed.get((score.method, score.task, SCRATCH, score.frames, None))
                yield self._kept(score, before)
            elif score.protocol == TRANSFER:
                scratch = printed.get((score.method, score.task, SCRATCH, score.frames, None))
                if scratch:
                    yield self._compared(score, scratch, GAIN, difference)
                    yield self._compared(score, scratch, TRANSFERABILITY, percent_of_scratch)

    def curves(self) -> list[dict[str, object]]:
        """The last task's learning curve of every finished run."""
        found = []
        for method, curriculum, seed in product(self._plan.methods, self._plan.curricula, self._plan.seeds):
            planned = self._plan.named_run(method, curriculum, seed)
            run = self._scores(planned) if planned else None
            if planned and run:
                curve = learning_curve(run, planned.stage.tasks[-1])
                points = {"frames": curve.frames.tolist(), "scores": curve.scores.tolist()}
                found.append({"method": method, "curriculum": str(curriculum), "seed": seed, **points})
        return found

    # Effects

    def _kept(self, score: PaperScore, before: PaperScore | None) -> Line:
        """100 * retest / before, where both are of the same runs."""
        assert score.source is not None
        changes = [
            (run.seed, change)
            for run in self._runs(score.method, Curriculum((score.task, score.source)))
            if (change := retest_change(run, self._played(score.task)))
        ]
        after = [SeedScore(seed, change.after) for seed, change in changes]
        first = [SeedScore(seed, change.before) for seed, change in changes]
        return self._effect(score, before, MAINTAINABILITY, _percent_kept, after, first)

    def _compared(self, score: PaperScore, scratch: PaperScore, name: str, measure: Measure) -> Line:
        """Both sides at the same frames: where the shorter runs end, if that is before the paper's budget."""
        assert score.source is not None
        task = self._played(score.task)
        ours, theirs = (
            list(self._runs(score.method, curriculum))
            for curriculum in (Curriculum((score.source, score.task)), Curriculum((score.task,)))
        )
        scores = scores_at_budget(ours, theirs, task, score.frames)
        return self._effect(score, scratch, name, measure, *((scores.transfer, scores.scratch) if scores else ([], [])))

    def _effect(
        self,
        score: PaperScore,
        beside: PaperScore | None,
        name: str,
        measure: Measure,
        ours: Sequence[SeedScore],
        theirs: Sequence[SeedScore],
    ) -> Line:
        found = Ours.of(compare(ours, theirs, measure), [self._budget(score)]) if ours and theirs else None
        paper = score._replace(protocol=name, mean=_measured(measure, score, beside), std=None)
        flags = [self._short_budget(score, found), self._stand_in(score.task, score.source)]
        return Line(paper, found, (), tuple(flag for flag in flags if flag))

    # Runs

    def _curriculum(self, score: PaperScore) -> Curriculum | None:
        """What a run learns that tells this score."""
        task, source = score.task, score.source
        curricula: dict[str, Callable[[], Curriculum | None]] = {
            SCRATCH: lambda: Curriculum((task,)),
            TRANSFER: lambda: Curriculum((source or "", task)),
            RETESTED: lambda: Curriculum((task, source or "")),
            TOGETHER: lambda: self._one_with(task, together=True),
            SEQUENTIAL: lambda: self._one_with(task, together=False),
        }
        return curricula[score.protocol]()

    def _one_with(self, task: str, together: bool) -> Curriculum | None:
        """The longest curriculum with the task, up to it unless all is learnt together."""
        having = [one for one in self._plan.curricula if task in one.tasks and one.together == together]
        if not having:
            return None
        longest = max(having, key=lambda one: len(one.tasks))
        return longest if together else Curriculum(longest.tasks[: longest.tasks.index(task) + 1])

    def _planned(self, method: str, curriculum: Curriculum) -> bool:
        return self._plan.named_run(method, curriculum, self._plan.seeds[0]) is not None

    def _runs(self, method: str, curriculum: Curriculum) -> Iterator[RunScores]:
        for seed in self._plan.seeds:
            planned = self._plan.named_run(method, curriculum, seed)
            run = self._scores(planned) if planned else None
            if run:
                yield run

    def _scores(self, planned: PlannedRun) -> RunScores | None:
        """None for a run that has not finished."""
        if planned.name not in self._read:
            finished = state_of(self._out, planned, self._plan.runs) == "finished"
            self._read[planned.name] = read_run(self._out / RUNS / planned.name) if finished else None
        return self._read[planned.name]

    def _evaluation(self, run: RunScores, score: PaperScore) -> tuple[float, int] | None:
        """The score and the frames it was reached at."""
        task = self._played(score.task)
        if score.protocol == RETESTED:
            rows = run.of_task(task, RETEST)
            return (rows[-1].score, rows[-1].frames) if rows else None
        row = evaluation_at(run, task, score.frames)
        return (row.score, row.frames) if row else None

    def _played(self, task: str) -> str:
        return self._plan.choice.scale.stand_ins.get(task, task)

    def _budget(self, score: PaperScore) -> int:
        """The paper's frames, as far as the runs have them."""
        return min(score.frames, self._plan.frames)

    # Flags

    def _short_budget(self, score: PaperScore, ours: Ours | None) -> str | None:
        """A run's evaluations come every few thousand frames, so that only a shorter budget counts."""
        if self._budget(score) >= score.frames or ours is None:
            return None
        return f"{self._budget(score):,} of the paper's {score.frames:,} frames"

    def _stand_in(self, *tasks: str | None) -> str | None:
        stand_ins = self._plan.choice.scale.stand_ins
        words = [f"{stand_ins[task]} for {task}" for task in tasks if task and task in stand_ins]
        return "substitution: " + ", ".join(words) if words else None


def _percent_kept(after: Array, before: Array) -> Array:
    return 100 + percent_of_scratch(after, before)


def _measured(measure: Measure, score: PaperScore, beside: PaperScore | None) -> float | None:
    """The measure of the paper's own two scores."""
    if beside is None or score.mean is None or beside.mean is None:
        return None
    sides = [SeedScore(None, float(one)) for one in (score.mean, beside.mean)]
    return compare(sides[:1], sides[1:], measure).mean
