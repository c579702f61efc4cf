"""The tables of docs/results.md: every kind is a function from files under results/ to Markdown.

To add a kind, write a function `(root, arguments) -> Markdown` and enter it in `TABLES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from result_runs import PublishedRun, ResultsError, common_task, read_json, read_one_run, read_runs
from search_tables import offline, records, trials

from ctrlformer.analysis.metrics import (
    FINAL,
    LEARN,
    RETEST,
    area,
    common_range,
    learning_curve,
    markdown,
    retest_change,
    retest_matrix_markdown,
)
from ctrlformer.analysis.statistics import Statistic
from ctrlformer.paper.references import paper_scores, public_at_100k

SCORE = "score ± std of episodes"
TEN_TASKS = (
    "cartpole_balance",
    "cartpole_balance_sparse",
    "cartpole_swingup",
    "cartpole_swingup_sparse",
    "reacher_easy",
    "reacher_hard",
    "finger_turn_easy",
    "finger_turn_hard",
    "walker_stand",
    "walker_walk",
)


@dataclass(frozen=True)
class Arguments:
    """What follows the kind in a placeholder: paths below the repository's root, and options NAME=VALUE."""

    paths: tuple[str, ...]
    options: Mapping[str, str]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Arguments:
        """
        >>> Arguments.parse(["results/demo", "task=cartpole_swingup"]).options
        {'task': 'cartpole_swingup'}
        """
        pairs = [word.split("=", 1) for word in words if "=" in word]
        return cls(tuple(word for word in words if "=" not in word), dict(pairs))

    def only_path(self) -> str:
        if len(self.paths) != 1:
            raise ResultsError(f"takes one path, not {len(self.paths)}")
        return self.paths[0]


Table: TypeAlias = Callable[[Path, Arguments], str]


def learning_curves(root: Path, arguments: Arguments) -> str:
    """A line per run: the score at every evaluation of one task.

    `last=N` adds the mean of the last N evaluations, `minutes=each` the wall-clock minutes of each in brackets.
    """
    runs = read_runs(root, arguments.paths)
    task = common_task(runs, arguments.options.get("task"))
    last, timed = int(arguments.options.get("last", 0)), arguments.options.get("minutes") == "each"
    frames = _evaluated_frames(runs, task)
    headings = ["run", "seed", *map(frames_text, frames), *([f"mean of last {last}"] if last else [])]
    lines = []
    for run in runs:
        curve = {row["frames"]: row for row in run.rows if row["task"] == task and row["kind"] in (LEARN, FINAL)}
        mean = [_whole(_mean([row["mean"] for row in curve.values()][-last:]))] if last else []
        cells = [_evaluation(curve.get(frame), timed) for frame in frames]
        lines.append([f"`{run.name}`", str(run.seed), *cells, *mean, *([] if timed else [f"{run.minutes:.1f}"])])
    headings += [] if timed else ["minutes"]
    return _with_protocol([headings, *lines], runs, [task])


def final_scores(root: Path, arguments: Arguments) -> str:
    """A line per run and task: the last evaluation in the task's own stage, with everything it depends on."""
    headings = ["task", "preset", "seed", "frames", "action repeat", "episodes", SCORE, "minutes of the run", "run"]
    lines = [_final_line(run, task) for run in read_runs(root, arguments.paths) for task in run.tasks]
    return markdown([headings, *lines])


def retests(root: Path, arguments: Arguments) -> str:
    """The retest matrix of one sequence."""
    run = read_one_run(root, arguments.only_path())
    return f"{retest_matrix_markdown([run.scores])}\n\n{protocol([run], run.tasks)}"


def sequences(root: Path, arguments: Arguments) -> str:
    """A line per sequence: of every task the score at its own stage's end and, after an arrow, in its last retest."""
    runs = read_runs(root, arguments.paths)
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    lines = []
    for run in runs:
        settings = run.transfer(run.tasks[-1])
        label = [f"`{run.name}`", str(run.seed), settings["protect"], f"{settings['encoder_lr_scale']:g}"]
        lines.append([*label, *(_before_and_after(run, task) for task in tasks)])
    return _with_protocol([["run", "seed", "protection", "encoder lr scale", *tasks], *lines], runs, tasks)


def transfer(root: Path, arguments: Arguments) -> str:
    """A line per run, from scratch or after another task: the curve of the new task, and the first task's retest."""
    runs = read_runs(root, arguments.paths)
    task = common_task(runs, arguments.options.get("task"))
    frames = _evaluated_frames(runs, task)
    first = next((run.tasks[0] for run in runs if run.tasks[0] != task), None)
    headings = ["run", "seed", "heads", "encoder lr scale", *map(frames_text, frames)]
    headings += [f"{first} before", "retest", "retest / before"] if first else []
    lines = [_transfer_line(run, task, frames) for run in runs]
    learnt = [task, *([first] if first else [])]
    return _with_protocol([headings, *(line[: len(headings)] for line in lines)], runs, learnt)


def areas(root: Path, arguments: Arguments) -> str:
    """A line per setting: seeds, frames, area under the learning curve with its interval, and the score
    at the end of these frames.

    Runs whose folders differ only in `-seedN` are seeds of one setting. `frames=N` cuts the curves at N frames.
    """
    runs = read_runs(root, arguments.paths)
    task = common_task(runs, arguments.options.get("task"))
    budget = int(arguments.options["frames"]) if "frames" in arguments.options else None
    settings: dict[str, list[PublishedRun]] = {}
    for run in runs:
        settings.setdefault(re.sub(r"-seed\d+", "", run.name), []).append(run)
    headings = ["setting", "preset", "seeds", "frames", "area under the curve", "95 % interval", "score there"]
    lines = [_area_line(name, group, task, budget) for name, group in settings.items()]
    return _with_protocol([headings, *lines], runs, [task])


def against_public(root: Path, arguments: Arguments) -> str:
    """The paper's ten tasks: our last score at or before 100k frames beside the paper's and the best public one."""
    runs = read_runs(root, arguments.paths)
    headings = ["task", "ours, mean", "95 % interval", "seeds", "frames", "paper's CtrlFormer, 100k"]
    headings.append("best public, 100k")
    lines = [_public_line(task, [run for run in runs if task in run.tasks]) for task in TEN_TASKS]
    return _with_protocol([headings, *lines], runs, [task for task in TEN_TASKS if any(task in r.tasks for r in runs)])


def drift(root: Path, arguments: Arguments) -> str:
    """A line per run and later stage: the drift of every earlier task's features at the stage's end."""
    files = {path: read_json(root / path / "drift.json") for path in arguments.paths}
    names = list(dict.fromkeys(key for stages in files.values() for row in stages.values() for key in row))
    names.remove("frames")
    lines = []
    for path, stages in files.items():
        run = read_one_run(root, path)
        for stage, row in stages.items():
            label = [f"`{run.name}`", run.transfer(run.tasks[int(stage)])["protect"], run.tasks[int(stage)]]
            lines.append([*label, *(_decimals(row.get(name), 2) for name in names)])
    headings = ["run", "protection", "at the end of", *(name.removeprefix("drift/") for name in names)]
    return markdown([headings, *lines])


def setting_search(root: Path, arguments: Arguments) -> str:
    """compact_search.json: mean return and feature std of every setting tried."""
    found = read_json(root / arguments.only_path())
    headings = ["changed from `compact`", *(f"{name} at frames" for name in ("return", "feature std"))]
    lines = []
    for run in found["runs"]:
        changed = ", ".join(f"`{name}` {_setting(value)}" for name, value in run["changed from compact"].items())
        returns = (f"{_mean(row['returns']):.0f} at {frames_text(row['frames'])}" for row in run["evals"])
        stds = (f"{row['feature_std']:.2f} at {frames_text(row['frames'])}" for row in run["evals"])
        lines.append([changed, ", ".join(returns), ", ".join(stds)])
    return f"{markdown([headings, *lines])}\n\n{found['task']}, action repeat 8, seed {found['seed']}: {found['note']}."


def probe(root: Path, arguments: Arguments) -> str:
    """probe.json: the share of variance of every state that each encoder explains."""
    found = read_json(root / arguments.only_path())
    states = next(iter(found["encoders"].values()))["states"]
    headings = ["encoder", *states, "mean", "feature std before training", "s per update"]
    lines = []
    for name, one in found["encoders"].items():
        values = [*one["r2"], _mean(one["r2"]), one["feature_std"], one["seconds_per_update"]]
        lines.append([name, *(f"{value:.2f}" for value in values)])
    caption = f"{found['updates']} updates of batch {found['batch']}, learning rate {found['learning_rate']:g}"
    return f"{markdown([headings, *lines])}\n\n{caption}, seed {found['seed']}."


def reproduced(root: Path, arguments: Arguments) -> str:
    """The JSON file of `ctrlformer reproduce`: one line per method, task and protocol."""
    found = read_json(root / arguments.only_path())
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in found["lines"]:
        protocol = f"{one['protocol']}, {one['source']}" if one["source"] else one["protocol"]
        key = (one["method"], one["task"], protocol)
        mean = f"{one['mean']:.0f} ± {one['std']:.0f}"
        lines.setdefault(key, [*key, f"{one['last_frames_run']:,}", str(one["seeds"]), mean, ""])
        paper = "not printed" if one["paper_mean"] is None else f"{one['paper_mean']:g}"
        lines[key][-1] += f"{', ' if lines[key][-1] else ''}{paper} at {frames_text(one['frames'])}"
    headings = ["method", "task", "protocol, other task", "frames", "seeds", "ours, mean ± std", "paper"]
    notes = "; ".join(f"`{name}`: {meaning}" for name, meaning in found["methods"].items())
    return f"{markdown([headings, *lines.values()])}\n\nMethods: {notes}."


def search(root: Path, arguments: Arguments) -> str:
    """The trials of a search, from a file of JSON lines."""
    return trials(root / arguments.only_path())


def representations(root: Path, arguments: Arguments) -> str:
    """What features of several encoders and losses tell of a task's state, from a file of JSON lines."""
    return offline(root / arguments.only_path(), arguments.options["task"], arguments.options["parts"].split(","))


def measurements(root: Path, arguments: Arguments) -> str:
    """Chosen fields of a file of JSON lines, as they are."""
    return records(root / arguments.only_path(), arguments.options["columns"].split(","))


TABLES: Mapping[str, Table] = {
    "learning_curves": learning_curves,
    "final_scores": final_scores,
    "retests": retests,
    "sequences": sequences,
    "transfer": transfer,
    "areas": areas,
    "against_public": against_public,
    "drift": drift,
    "setting_search": setting_search,
    "probe": probe,
    "reproduced": reproduced,
    "search": search,
    "representations": representations,
    "measurements": measurements,
}


def protocol(runs: Sequence[PublishedRun], tasks: Iterable[str]) -> str:
    """Return the settings that scores depend on: budgets, action repeats, presets, seeds, episodes and commits."""
    learners = {task: [run for run in runs if task in run.tasks] for task in tasks}
    budgets = {task: _listed({run.budget(task) for run in group}) for task, group in learners.items()}
    repeats = {task: _listed({run.action_repeat(task) for run in group} - {None}) for task, group in learners.items()}
    methods, seeds = dict.fromkeys(run.method for run in runs), {run.seed for run in runs}
    commits = dict.fromkeys(run.commit for run in runs)
    start = f"{_listed(learners)}: preset" if len(set(budgets.values())) == 1 else "Preset"
    return (
        f"{start} {_listed(methods)}; {_plural('seed', seeds)} {_listed(seeds)};"
        f" budget in frames: {_per_task(budgets)}; action repeat: {_per_task(repeats)};"
        f" {_episodes(runs)}; {_plural('commit', commits)} {_listed(commits)}."
    )


def frames_text(frames: float) -> str:
    """
    >>> frames_text(0), frames_text(100_000), frames_text(500)
    ('0', '100k', '500')
    """
    return f"{frames / 1000:g}k" if frames >= 1000 else f"{frames:g}"


def _with_protocol(cells: list[list[str]], runs: Sequence[PublishedRun], tasks: Iterable[str]) -> str:
    return f"{markdown(cells)}\n\n{protocol(runs, tasks)}"


def _per_task(values: Mapping[str, str]) -> str:
    """
    >>> _per_task({"a": "8", "b": "8"}), _per_task({"a": "8", "b": "4"})
    ('8', '8 of a, 4 of b')
    """
    same = len(set(values.values())) == 1
    return next(iter(values.values())) if same else ", ".join(f"{value} of {task}" for task, value in values.items())


def _episodes(runs: Sequence[PublishedRun]) -> str:
    learn = _listed({count for run in runs for count in run.episodes(LEARN)}, " or ")
    last = _listed({count for run in runs for count in run.episodes(FINAL, RETEST)}, " or ")
    return f"{learn} episodes per evaluation" + (f", {last} at the end of a stage" if last not in ("", learn) else "")


def _plural(noun: str, values: Iterable[Any]) -> str:
    return noun if len(list(values)) == 1 else f"{noun}s"


def _listed(values: Iterable[Any], between: str = ", ") -> str:
    """
    >>> _listed({50_000, 1}, " or ")
    '1 or 50,000'
    """
    ordered = sorted(values) if isinstance(values, set) else values
    return between.join(f"{value:,}" if isinstance(value, int) else str(value) for value in ordered)


def _evaluated_frames(runs: Sequence[PublishedRun], task: str) -> list[int]:
    return sorted({row.frames for run in runs for row in run.scores.of_task(task, LEARN, FINAL)})


def _evaluation(row: Mapping[str, Any] | None, timed: bool) -> str:
    if row is None:
        return ""
    return f"{row['mean']:.0f} ({row['minutes']:.1f})" if timed else f"{row['mean']:.0f}"


def _final_line(run: PublishedRun, task: str) -> list[str]:
    row = [row for row in run.rows if row["task"] == task and row["kind"] in (LEARN, FINAL)][-1]
    score = f"{row['mean']:.0f} ± {row['std']:.0f}"
    cells = [task, run.method, str(run.seed), f"{row['frames']:,}", str(run.action_repeat(task))]
    return [*cells, str(len(row["returns"])), score, f"{run.minutes:.1f}", f"`{run.name}`"]


def _before_and_after(run: PublishedRun, task: str) -> str:
    if task not in run.tasks:
        return ""
    change = retest_change(run.scores, task)
    return f"{change.before:.0f} → {change.after:.0f}" if change else f"{run.final(task):.0f}"


def _transfer_line(run: PublishedRun, task: str, frames: Sequence[int]) -> list[str]:
    curve = dict(zip(*(array.tolist() for array in learning_curve(run.scores, task)), strict=True))
    scores = [_whole(curve.get(frame)) for frame in frames]
    if run.tasks[0] == task:
        return [f"`{run.name}`", str(run.seed), "from scratch", "", *scores, "", "", ""]
    settings, change = run.transfer(task), retest_change(run.scores, run.tasks[0])
    if change is None or change.ratio is None:
        raise ResultsError(f"{run.folder} has no retest of {run.tasks[0]}")
    kept = [_whole(change.before), _whole(change.after), f"{change.ratio:.1%}"]
    return [f"`{run.name}`", str(run.seed), settings["heads"], f"{settings['encoder_lr_scale']:g}", *scores, *kept]


def _area_line(name: str, runs: Sequence[PublishedRun], task: str, budget: int | None) -> list[str]:
    _check_one_setting(runs)
    curves = [learning_curve(run.scores, task, budget) for run in runs]
    shared = common_range(curves)
    if shared is None:
        raise ResultsError(f"{name}: the curves of {task} share no stretch of frames")
    under = Statistic.of([area(curve, *shared) for curve in curves])
    last = _mean([float(np.interp(shared[1], *curve)) for curve in curves])
    cells = [f"`{name}`", runs[0].method, _listed({run.seed for run in runs}), frames_text(shared[1])]
    return [*cells, f"{under.mean:.3f}", _interval(under, 3), _whole(last)]


def _check_one_setting(runs: Sequence[PublishedRun]) -> None:
    """Raise unless the runs differ in their seeds only, so that they may be pooled."""
    for run in runs[1:]:
        if differing := _differing(runs[0].config, run.config):
            names = f"{runs[0].name} and {run.name}"
            raise ResultsError(f"{names} are not seeds of one setting: they differ in {', '.join(differing)}")


def _differing(one: Any, other: Any, name: str = "") -> list[str]:
    """Return the settings that both configs have with different values, the seed aside."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [key for key in one if key in other and (name or key != "seed")]
        return [found for key in names for found in _differing(one[key], other[key], f"{name}.{key}".lstrip("."))]
    return [] if one == other else [name]


def _public_line(task: str, runs: Sequence[PublishedRun]) -> list[str]:
    ours = ["not run", "", "", ""]
    if runs:
        _check_one_setting(runs)
        curves = [learning_curve(run.scores, task, 100_000) for run in runs]
        score = Statistic.of([float(curve.scores[-1]) for curve in curves])
        reached = _listed({int(curve.frames[-1]) for curve in curves})
        ours = [_whole(score.mean), _interval(score, 0), _listed({run.seed for run in runs}), reached]
    best = max(public_at_100k(task), key=lambda public: public.mean)
    return [task, *ours, paper_at_100k(task), f"{best.mean:g} ({best.system})"]


def paper_at_100k(task: str) -> str:
    """Return the paper's score of CtrlFormer from scratch, with its std."""
    for experiment in ("same_domain", "sequence_of_four"):
        for score in paper_scores(experiment):
            if (score.method, score.task, score.protocol, score.frames) == ("ctrlformer", task, "scratch", 100_000):
                return f"{score.mean:g}" + (f" ± {score.std:g}" if score.std is not None else "")
    raise ResultsError(f"the paper has no score of {task} at 100k frames")


def _interval(score: Statistic, digits: int) -> str:
    interval = score.mean_interval
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}" if interval else "one seed"


def _setting(value: Any) -> str:
    return {True: "on", False: "off", None: "none"}[value] if value in (None, True, False) else str(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _whole(value: float | None) -> str:
    return _decimals(value, 0)


def _decimals(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
