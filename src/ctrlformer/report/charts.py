"""What the page's charts show, as plain lists for its script: curves over seeds, whole runs, training metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ctrlformer.analysis.metrics import FINAL, LARGEST_RETURN, LEARN, RETEST, Curve, RunScores, learning_curve
from ctrlformer.analysis.statistics import Array, Statistic
from ctrlformer.paper.references import paper_scores, public_scores
from ctrlformer.report.report_run import ReportRun
from ctrlformer.storage.files import JSON
from ctrlformer.storage.run_folder import Row

POINTS = 24_000  # of all runs' training metrics together: more would not be seen, and makes the page heavy
MOST_POINTS = 240  # of one line

METRICS = {
    "return": "Return of training episodes, with exploration",
    "critic_loss": "Critic's loss",
    "q": "Q on the batch",
    "episode_q": "Q of an episode's steps",
    "monte_carlo": "What these steps earned, discounted",
    "actor_loss": "Actor's loss",
    "temperature": "Temperature",
    "entropy": "Entropy of the policy",
    "feature_std": "Std of the features",
    "effective_rank": "Effective rank of the features",
    "dead_units": "Share of dead units",
    "contrastive_loss": "Contrastive loss",
    "rehearsal_loss": "Rehearsal loss",
    "gradient_norm": "Norm of the gradient",
    "learner_busy": "Share of time in updates",
}
MARKED_FRAMES = 100_000
DRIFT, SPEED = "drift/", "frames a second"


class Group(NamedTuple):
    """Runs that differ in their seeds only, as far as one task goes."""

    method: str
    plain_method: str  # but for how it transfers: what its runs from scratch are called
    task: str
    before: tuple[str, ...]  # tasks learnt in earlier stages
    runs: list[RunScores]

    @property
    def label(self) -> str:
        return f"{self.method}, after {' and '.join(self.before)}" if self.before else f"{self.method}, from scratch"


def groups(runs: Sequence[ReportRun]) -> list[Group]:
    """Every task of every run, seeds together; in the order in which tasks and methods first come up."""
    found: dict[tuple[str, str, str, tuple[str, ...]], Group] = {}
    for run in runs:
        if run.scores is None:
            continue
        for task, stage in run.scores.stages.items():
            before = tuple(old for old, earlier in run.scores.stages.items() if earlier < stage)
            method = run.method if before else run.plain_method
            key = (method, run.plain_method, task, before)
            group = found.setdefault(key, Group(*key, []))
            if not any(_same_stage(run.scores, other, task) for other in group.runs):
                group.runs.append(run.scores)
    return list(found.values())


def _same_stage(one: RunScores, other: RunScores, task: str) -> bool:
    """Whether both have the very same training of the task: one continues the other, and must not count twice."""
    return one.seed == other.seed and one.of_task(task, LEARN, FINAL) == other.of_task(task, LEARN, FINAL)


def learning_curves(runs: Sequence[ReportRun]) -> list[dict[str, JSON]]:
    """One chart per task, one line per group of seeds: mean, and a 95 % band where there are several."""
    charts: dict[str, dict[str, JSON]] = {}
    for group in groups(runs):
        chart = charts.setdefault(group.task, {"task": group.task, "series": [], "marks": reference_marks(group.task)})
        chart["series"].append({"label": group.label, "method": group.method, **_over_seeds(group)})
    return list(charts.values())


def reference_marks(task: str) -> list[dict[str, JSON]]:
    """What others reached from scratch by the frames at which the paper first looks: its own score, and the best public
    one."""
    paper = [
        score.mean
        for score in paper_scores("same_domain")
        if (score.method, score.task, score.protocol, score.frames) == ("ctrlformer", task, "scratch", MARKED_FRAMES)
    ]
    public = [(score.mean, score.system) for score in public_scores(task) if score.frames == MARKED_FRAMES]
    marks = [{"label": f"paper, {MARKED_FRAMES // 1000}k", "y": mean} for mean in paper if mean is not None]
    if public:
        best, system = max(public)
        marks.append({"label": f"{system}, {MARKED_FRAMES // 1000}k", "y": best})
    return marks


def _over_seeds(group: Group) -> dict[str, JSON]:
    curves = [learning_curve(run, group.task) for run in group.runs]
    frames = _shared_frames(curves)
    scores = np.array([np.interp(frames, curve.frames, curve.scores) for curve in curves])  # (runs, frames)
    statistics = [Statistic.of(column) for column in scores.T]
    band = [one.mean_interval for one in statistics]
    return {
        "runs": len(curves),
        "x": [int(frame) for frame in frames],
        "y": _rounded([one.mean for one in statistics]),
        "low": _rounded([interval.low for interval in band if interval]),
        "high": _rounded([interval.high for interval in band if interval]),
    }


def _shared_frames(curves: Sequence[Curve]) -> Array:
    """Where any of the curves was evaluated, as far as all of them go."""
    low, high = max(curve.frames[0] for curve in curves), min(curve.frames[-1] for curve in curves)
    every = np.unique(np.concatenate([curve.frames for curve in curves]))
    inside = every[(every >= low) & (every <= high)]
    return inside if inside.size else np.array([high])


def whole_runs(runs: Sequence[ReportRun]) -> list[dict[str, JSON]]:
    """Every run of several stages from its first frame to its last: each task as it is learnt and retested."""
    return [_whole_run(run, run.scores) for run in runs if run.scores and len(run.scores.curriculum) > 1]


def _whole_run(run: ReportRun, scores: RunScores) -> dict[str, JSON]:
    starts = _stage_starts(run.evals)
    series = []
    for task in scores.stages:
        rows = [row for row in scores.rows if row.task == task]
        series.append(
            {
                "label": task,
                "x": [starts[row.stage] + row.frames for row in rows],
                "y": _rounded([row.score for row in rows]),
                "retest": [row.kind == RETEST for row in rows],
            }
        )
    names = [" + ".join(sorted(group)) for group in scores.curriculum]
    borders = [{"x": starts[stage], "label": name} for stage, name in zip(sorted(starts), names, strict=False)]
    return {"run": run.name, "borders": borders, "series": series}


def _stage_starts(rows: Sequence[Row]) -> dict[int, int]:
    """All frames of the stages before each stage."""
    lengths: dict[int, int] = {}
    for row in rows:
        lengths[row["stage"]] = max(lengths.get(row["stage"], 0), row["frames"])
    starts, total = {}, 0
    for stage in sorted(lengths):
        starts[stage] = total
        total += lengths[stage]
    return starts


def training_metrics(runs: Sequence[ReportRun]) -> list[dict[str, JSON]]:
    """One chart per logged metric, one line per run, thinned out evenly."""
    points = max(20, min(MOST_POINTS, POINTS // (len(runs) * len(METRICS))))
    charts: dict[str, dict[str, JSON]] = {}
    for run in runs:
        for name, title, x, y in _metrics_of(run):
            chart = charts.setdefault(name, {"name": name, "title": title, "series": []})
            keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), points)).astype(int))
            line = {"label": run.name, "method": run.method, "x": [x[i] for i in keep]}
            chart["series"].append(line | {"y": _rounded([y[i] for i in keep])})
    order = [*METRICS, SPEED]
    return sorted(charts.values(), key=lambda chart: order.index(chart["name"]) if chart["name"] in order else 99)


def _metrics_of(run: ReportRun) -> Iterator[tuple[str, str, list[int], list[float]]]:
    rows = _placed(run.metrics)
    starts = _stage_starts([*_placed(run.evals), *rows])  # the logged rows are thinned: a stage's last may be missing
    place = [starts[row["stage"]] + int(row["frames"]) for row in rows]
    drifts = sorted({key for row in rows for key in row if key.startswith(DRIFT)})
    titles = METRICS | {key: f"Drift of {key.removeprefix(DRIFT)}" for key in drifts}
    for name, title in titles.items():
        known = [(x, _number(row.get(name))) for x, row in zip(place, rows, strict=True)]
        line = [(x, y) for x, y in known if y is not None]
        if line:
            yield name, title, [x for x, _ in line], [y for _, y in line]
    speeds = list(_speeds(rows, place))
    if speeds:
        yield SPEED, "Frames a second", [x for x, _ in speeds], [y for _, y in speeds]


def _placed(rows: Sequence[Row]) -> list[Row]:
    """Those that say where they belong."""
    return [row for row in rows if _number(row.get("frames")) is not None and type(row.get("stage")) is int]


def _speeds(rows: Sequence[Row], place: Sequence[int]) -> Iterator[tuple[int, float]]:
    for before, after, row in zip(place, place[1:], rows[1:], strict=False):
        seconds = _number(row.get("seconds"))
        if seconds and after > before and "critic_loss" in row:  # random steps at a stage's start are far quicker
            speed = _number((after - before) / seconds)
            if speed is not None:
                yield after, speed


def _number(value: JSON) -> float | None:
    """A number that can be drawn, or none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST_RETURN:
        return None
    return float(value)


def _rounded(values: Sequence[float]) -> list[float]:
    """Four digits: more cannot be seen."""
    return [float(f"{value:.4g}") for value in values]


def as_json(runs: Sequence[ReportRun]) -> Mapping[str, JSON]:
    """Everything the script draws."""
    return {"curves": learning_curves(runs), "wholes": whole_runs(runs), "figures": training_metrics(runs)}
