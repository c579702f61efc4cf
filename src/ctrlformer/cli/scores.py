"""`ctrlformer scores`: what runs of one curriculum are worth over their seeds, and beside learning from scratch.

Runs with other settings are no seeds: each group of equal settings has its own tables. On a terminal
it prints tables; into a file or a pipe it prints them as Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ctrlformer.analysis.continual_world import ContinualWorld, continual_world
from ctrlformer.analysis.formatting import Cells, as_table, frames_text, interval_text, short
from ctrlformer.analysis.metrics import (
    SUITE_MAXIMUM,
    RunScores,
    average_over_tasks,
    common_curriculum,
    evaluation_at,
    forgetting,
    markdown,
    mean_forgetting,
    retest_cells,
    retest_change,
    retest_matrix,
)
from ctrlformer.analysis.probes import TransferMatrix, transfer_matrix
from ctrlformer.analysis.run_groups import RunGroup, ScoredRun, budget_notes, check_scratch, grouped
from ctrlformer.analysis.statistics import Statistic
from ctrlformer.analysis.transfer import (
    TransferGain,
    difference,
    forward_transfer,
    from_scratch,
    percent_of_scratch,
    scores_at_budget,
)
from ctrlformer.errors import ConfigError, RunError
from ctrlformer.storage.files import JSON, to_json, write_atomic

STATISTIC_HEADINGS = ["runs", "mean ± std", "95 % of the mean", "IQM", "95 % of the IQM"]
SCORE_HEADINGS = ["measure", "task", "frames", *STATISTIC_HEADINGS]
FIGURE_HEADINGS = ["figure", *STATISTIC_HEADINGS]
COMPARISON_HEADINGS = ["measure", "task", "frames", "runs", "of means", "95 %", "of IQMs", "95 %"]


@dataclass(frozen=True)
class ScoreLine:
    """One line of the first table."""

    measure: str
    task: str | None
    """None for a measure of all tasks."""
    statistic: Statistic
    frames: tuple[int, int] | None = None
    """Of the earliest and the latest evaluation among the runs."""

    def to_json(self) -> dict[str, JSON]:
        return {"measure": self.measure, "task": self.task, "frames": self.frames, **self.statistic._asdict()}

    def cells(self) -> list[str]:
        frames = frames_text(self.frames) if self.frames else ""
        return [self.measure, self.task or "all", frames, *statistic_cells(self.statistic)]


def statistic_cells(found: Statistic) -> list[str]:
    """Runs, mean ± std and its interval, interquartile mean and its interval."""
    mean = f"{short(found.mean)} ± {short(found.std)}" if found.runs > 1 else short(found.mean)
    ranges = interval_text(found.mean_interval), interval_text(found.iqm_interval)
    return [str(found.runs), mean, ranges[0], short(found.iqm), ranges[1]]


@dataclass(frozen=True)
class ComparisonLine:
    """One line of the second table: transfer beside scratch."""

    measure: str
    task: str
    gain: TransferGain

    def to_json(self) -> dict[str, JSON]:
        comparison = self.gain.comparison._asdict()
        return {"measure": self.measure, "task": self.task, "frames": self.gain.frames, **comparison}

    def cells(self) -> list[str]:
        found = self.gain.comparison
        runs = f"{found.transfer_runs} and {found.scratch_runs}{', paired' if found.paired else ''}"
        mean = short(found.mean), interval_text(found.mean_interval)
        return [
            self.measure,
            self.task,
            frames_text(self.gain.frames),
            runs,
            *mean,
            short(found.iqm),
            interval_text(found.iqm_interval),
        ]


@dataclass(frozen=True)
class Summary:
    """Everything the command prints of one group of runs."""

    runs: tuple[RunScores, ...]
    incomplete: tuple[str, ...]
    """Runs that have not come to the end of the curriculum: they count in scores, but not in what follows the end."""
    lines: tuple[ScoreLine, ...]
    comparisons: tuple[ComparisonLine, ...]
    sequence: ContinualWorld | None = None
    probes: TransferMatrix | None = None
    group: RunGroup | None = None
    """The settings that the runs have in common."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        return {
            "method": self.group.method.name if self.group else None,
            "budget": self.group.budget if self.group else None,
            "differs": self.heading,
            "notes": self.notes,
            "runs": [_run_json(run) for run in self.runs],
            "incomplete": self.incomplete,
            "figures": [line.to_json() for line in self.lines],
            "comparisons": [line.to_json() for line in self.comparisons],
            "continual_world": self.sequence and {k: v._asdict() for k, v in self.sequence.figures.items()},
            "probes": self.probes and self.probes.to_json(),
        }

    @property
    def heading(self) -> str:
        return self.group.heading if self.group else ""

    def tables(self) -> dict[str, Cells]:
        """The tables that have something to say, by title."""
        tables = {"Over runs": [SCORE_HEADINGS, *(line.cells() for line in self.lines)]}
        if len(common_curriculum(self.runs).curriculum) > 1:
            tables["Retests"] = retest_cells(self.runs)
        if self.comparisons:
            tables["Transfer beside scratch"] = [COMPARISON_HEADINGS, *(line.cells() for line in self.comparisons)]
        if self.sequence and self.sequence.figures:
            figures = self.sequence.figures.items()
            tables["Continual World's figures"] = [
                FIGURE_HEADINGS,
                *([name, *statistic_cells(one)] for name, one in figures),
            ]
        if self.probes:
            tables["Probes: old policies in new tasks, before learning"] = self.probes.cells()
        return tables


def main(
    runs: list[Path], scratch: list[Path], frames: int | None, json_file: Path | None, maximum: float = SUITE_MAXIMUM
) -> None:
    """Print the scores of runs, and write them; `frames` is the budget that scores and curves are taken at."""
    if not runs:
        raise ConfigError("no runs to score: name at least one run folder")
    if frames is not None and frames < 0:
        raise ConfigError(f"--frames is {frames}: it must be at least 0")
    if not 0 < maximum < math.inf:
        raise ConfigError(f"--maximum is {maximum}: it must be a return above 0")
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"--json {json_file}: there is no folder {json_file.parent}; make it first")
    summaries = score_groups(_read(runs), _read(scratch), frames, maximum)
    if json_file is not None:
        write_atomic(json_file, to_json({"groups": [summary.to_json() for summary in summaries]}))
    console = Console(highlight=False)
    for summary in summaries:
        _print(console, summary)


def score_groups(
    runs: Sequence[ScoredRun],
    scratch: Sequence[ScoredRun] = (),
    frames: int | None = None,
    maximum: float = SUITE_MAXIMUM,
) -> list[Summary]:
    """One summary for each group of runs that differ in their seeds only."""
    groups = grouped(runs)
    check_scratch(groups, scratch)
    found = [_of_group(group, scratch, frames, maximum) for group in groups]
    if not any(summary.lines for summary in found):
        raise RunError(f"no run has an evaluation within {frames} frames: ask for more --frames")
    if scratch and not any(summary.comparisons for summary in found):
        raise RunError("the --scratch runs learn from scratch no task that the runs learn after or beside others")
    return found


def _of_group(group: RunGroup, scratch: Sequence[ScoredRun], frames: int | None, maximum: float) -> Summary:
    alike = group.matching(scratch)
    summary = summarise(group.scores, [run.scores for run in alike], frames, maximum)
    notes = [
        f"{name} has not come to the end: it is left out of retests, forgetting and the average over tasks"
        for name in summary.incomplete
    ]
    notes += budget_notes(group, alike)
    if scratch and not alike:
        notes.append("no --scratch run has the settings of these runs")
    if any(run.settings.raw is None for run in group.runs):
        notes.append("no config.json: whether these runs differ in their seeds only is not known")
    return replace(summary, group=group, notes=tuple(notes))


def summarise(
    runs: Sequence[RunScores],
    scratch: Sequence[RunScores] = (),
    frames: int | None = None,
    maximum: float = SUITE_MAXIMUM,
) -> Summary:
    """Every measure of runs that differ in their seeds only, and of its tasks beside those learnt from scratch."""
    longest = common_curriculum(runs)
    whole = [run for run in runs if run.finished and run.curriculum == longest.curriculum]
    lines = [_score(runs, task, frames) for task in longest.stages]
    if len(longest.curriculum) > 1:
        lines += [line for task in longest.stages for line in _retests(whole, task)]
        lines.append(_line("mean forgetting", None, [mean_forgetting(run) for run in whole]))
    if len(longest.stages) > 1:
        lines.append(_line("average over tasks", None, [average_over_tasks(run) for run in whole]))
    comparisons = _comparisons(runs, scratch, frames, maximum) if scratch else ()
    incomplete = tuple(run.name for run in runs if run not in whole)
    lines_found = tuple(line for line in lines if line)
    sequence = continual_world(whole, scratch, maximum)
    return Summary(tuple(runs), incomplete, lines_found, tuple(comparisons), sequence, transfer_matrix(runs))


def _score(runs: Sequence[RunScores], task: str, budget: int | None) -> ScoreLine | None:
    rows = [row for run in runs if (row := evaluation_at(run, task, budget))]
    counts = [row.frames for row in rows]
    return _line("score", task, [row.score for row in rows], (min(counts), max(counts)) if counts else None)


def _retests(runs: Sequence[RunScores], task: str) -> list[ScoreLine | None]:
    changes = [change for run in runs if (change := retest_change(run, task))]
    return [
        _line("last retest", task, [change.after for change in changes]),
        _line("retest - final", task, [change.difference for change in changes]),
        _line("retest / final", task, [change.ratio for change in changes]),
        _line("forgetting", task, [forgetting(run, task) for run in runs]),
    ]


def _line(
    measure: str, task: str | None, values: Sequence[float | None], frames: tuple[int, int] | None = None
) -> ScoreLine | None:
    """None if no run has measured it."""
    known = [value for value in values if value is not None]
    return ScoreLine(measure, task, Statistic.of(known), frames) if known else None


def _comparisons(
    runs: Sequence[RunScores], scratch: Sequence[RunScores], frames: int | None, maximum: float
) -> list[ComparisonLine]:
    """Compare every task that runs learn after or beside others with scratch runs that learn it first and alone."""
    found: list[ComparisonLine] = []
    for task in common_curriculum(runs).stages:
        ours = [run for run in runs if task in run.stages and not from_scratch(run, task)]
        theirs = [run for run in scratch if from_scratch(run, task)]
        if not ours or not theirs:
            continue
        scores = scores_at_budget(ours, theirs, task, frames)
        gains = {
            "transfer - scratch": scores and scores.gain(difference),
            "benefit, % of scratch": scores and scores.gain(percent_of_scratch),
            "forward transfer": forward_transfer(ours, theirs, task, frames, maximum),
        }
        found += [ComparisonLine(name, task, gain) for name, gain in gains.items() if gain]
    return found


def _read(folders: Sequence[Path]) -> list[ScoredRun]:
    """A run named twice would count as two seeds that agree, so it is refused."""
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise ConfigError(f"run {folder} is named twice")
        seen.add(folder.resolve())
    return [ScoredRun.read(folder) for folder in folders]


def _print(console: Console, summary: Summary) -> None:
    if summary.heading:
        heading = Text(summary.heading, style="bold") if console.is_terminal else f"# {summary.heading}\n"
        console.print(heading, markup=False, soft_wrap=True)
    for title, cells in summary.tables().items():
        if console.is_terminal:
            console.print(as_table(title, cells))
        else:
            console.print(f"## {title}\n\n{markdown(cells)}\n", markup=False, soft_wrap=True)
    for note in summary.notes:
        console.print(note, markup=False, soft_wrap=True)
    if summary.notes and not console.is_terminal:
        console.print()  # else a heading that follows would belong to the note's paragraph


def _run_json(run: RunScores) -> dict[str, JSON]:
    matrix = [[None if math.isnan(score) else score for score in line] for line in retest_matrix(run).tolist()]
    return {"run": run.name, "seed": run.seed, "tasks": run.stages, "retests": matrix}
