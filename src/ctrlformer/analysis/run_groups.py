"""Runs sorted into groups that differ in their seeds only, and for each group the runs from scratch to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ctrlformer.analysis.methods import MISSING, Method, RunSettings, listed
from ctrlformer.analysis.metrics import RunScores, read_run
from ctrlformer.errors import RunError


class ScoredRun(NamedTuple):
    """What a run scored, and with what settings."""

    scores: RunScores
    settings: RunSettings

    @classmethod
    def read(cls, folder: Path) -> ScoredRun:
        return cls(read_run(folder), RunSettings.read(folder))


@dataclass(frozen=True)
class RunGroup:
    """Runs of one method and one budget: a schedule over a stage's length makes even equal frames another training."""

    method: Method
    plain_method: Method
    """But for how it transfers: what runs from scratch have in common with it."""
    budget: tuple[int, ...]
    """Frames of a task in every stage; empty where they are not known."""
    runs: tuple[ScoredRun, ...]
    heading: str = ""
    """What it differs in from the other groups; empty for a single one."""

    @property
    def scores(self) -> list[RunScores]:
        return [run.scores for run in self.runs]

    def matching(self, scratch: Sequence[ScoredRun]) -> list[ScoredRun]:
        """Those of the same method; how it transfers cannot matter to them."""
        return [run for run in scratch if run.settings.plain_method.name == self.plain_method.name]


def grouped(runs: Sequence[ScoredRun]) -> list[RunGroup]:
    """In the order in which the settings first come up."""
    found: dict[tuple[str, tuple[int, ...]], list[ScoredRun]] = {}
    for run in runs:
        found.setdefault((run.settings.group_method.name, run.settings.budget), []).append(run)
    firsts = [same[0].settings for same in found.values()]
    return [
        RunGroup(one.group_method, one.plain_method, one.budget, tuple(same), _heading(one, firsts))
        for one, same in zip(firsts, found.values(), strict=True)
    ]


def check_scratch(groups: Sequence[RunGroup], scratch: Sequence[ScoredRun]) -> None:
    """Refuse runs from scratch that compare with no group, or not with one another."""
    for run in scratch:
        if not any(group.matching([run]) for group in groups):
            raise RunError(f"--scratch run {run.scores.name} has other settings than the runs: {_nearest(run, groups)}")
    for group in groups:
        _check_budgets(group.matching(scratch))


def budget_notes(group: RunGroup, scratch: Sequence[ScoredRun]) -> list[str]:
    """Tasks whose stage was planned longer or shorter than from scratch."""
    found = {}
    for run in group.runs:
        for task, stage in run.scores.stages.items():
            for other in scratch:
                ours, theirs = group.budget[stage : stage + 1], other.settings.budget[:1]
                if other.scores.stages.get(task) == 0 and stage and ours and theirs and ours != theirs:
                    found[task] = f"{task}: a stage of {ours[0]:,} frames here, of {theirs[0]:,} from scratch"
    return [f"{text}; schedules over a stage differ" for text in found.values()]


def _heading(one: RunSettings, every: Sequence[RunSettings]) -> str:
    method = one.group_method.distinguished_from([other.group_method for other in every])
    budgets = {other.budget for other in every}
    frames = " + ".join(f"{count:,}" for count in one.budget) + " frames" if one.budget and len(budgets) > 1 else ""
    return ", ".join(text for text in (method, frames) if text)


def _nearest(run: ScoredRun, groups: Sequence[RunGroup]) -> str:
    """What it differs in from the group that it is most like."""
    own = run.settings.plain_method
    nearest = min((group.plain_method for group in groups), key=lambda other: len(own.differing(other)))
    differences = [f"{name} is {_value(own, name)}, not {_value(nearest, name)}" for name in own.differing(nearest)]
    if own.preset != nearest.preset:
        differences.insert(0, f"the preset is {own.preset}, not {nearest.preset}")
    return listed(differences) or "they are of another version"


def _value(method: Method, name: str) -> str:
    return method.values.get(name, MISSING)


def _check_budgets(scratch: Sequence[ScoredRun]) -> None:
    first: dict[str, ScoredRun] = {}
    for run in scratch:
        task = min(run.scores.curriculum[0])
        other = first.setdefault(task, run)
        ours, theirs = (one.settings.budget[:1] for one in (other, run))
        if ours and theirs and ours != theirs:
            names = f"--scratch runs {other.scores.name} and {run.scores.name}"
            raise RunError(
                f"{names} learn {task} for {ours[0]:,} and for {theirs[0]:,} frames: name those of one budget"
            )
