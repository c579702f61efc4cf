"""Read published runs under results/ for the tables of docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from ctrlformer.analysis.metrics import FINAL, LEARN, RunScores, final_score, read_run, retest_change

EVALS = "evals.jsonl"
JsonObject: TypeAlias = dict[str, Any]


class ResultsError(Exception):
    """A placeholder that cannot be filled: the message names the file and what is wrong."""


def read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"no file {path}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ResultsError(f"{path} is not a JSON object")
    return value


@dataclass(frozen=True)
class PublishedRun:
    """A run folder under results/: its scores, and the settings under which they were measured."""

    root: Path
    folder: Path

    @property
    def name(self) -> str:
        """Return the folder's path below results/."""
        return self.folder.relative_to(self.root / "results").as_posix()

    @cached_property
    def scores(self) -> RunScores:
        return read_run(self.folder)

    @cached_property
    def config(self) -> JsonObject:
        return read_json(self.folder / "config.json")

    @cached_property
    def rows(self) -> list[JsonObject]:
        """Return evals.jsonl in the order of evaluation; `scores` has validated it."""
        _ = self.scores
        return [json.loads(line) for line in (self.folder / EVALS).read_text().splitlines()]

    @property
    def seed(self) -> int | None:
        return self.scores.seed

    @property
    def minutes(self) -> float:
        """Return the wall-clock minutes of training up to the last evaluation."""
        return float(self.rows[-1]["minutes"])

    @property
    def commit(self) -> str:
        commit = read_json(self.folder / "environment.json").get("commit")
        return str(commit)[:7] if commit else "not recorded"

    @property
    def tasks(self) -> list[str]:
        return list(self.scores.stages)

    @property
    def method(self) -> str:
        """Return the preset by its name of today, with the encoder where it is not the preset's own."""
        preset, kind = str(self.config["preset"]), self.config["encoder"]["kind"]
        if preset != "compact" or kind == "conv":
            return preset
        return "compact_vit" if kind == "ctrlformer" else f"compact_vit with encoder.kind {kind}"  # once `compact`

    def budget(self, task: str) -> int:
        """Return the configured frames of the task's stage."""
        for stage in self.config.get("added") or ():
            if task in stage["tasks"]:
                return int(stage["frames"])
        return int(self.config["training"]["frames"])

    def transfer(self, task: str) -> JsonObject:
        """Return the `transfer` settings of the task's stage; empty for a run older than these settings."""
        for stage in self.config.get("added") or ():
            if task in stage["tasks"]:
                return dict(stage["transfer"])
        return self.config.get("transfer") or {}

    def action_repeat(self, task: str) -> int | None:
        """Return frames per step; None if the task was evaluated untrained only."""
        for row in self.rows:
            if row["task"] == task and row["kind"] in (LEARN, FINAL) and row["steps"]:
                return int(row["frames"] // row["steps"])
        return None

    def episodes(self, *kinds: str) -> set[int]:
        """Return the numbers of episodes that evaluations of these kinds had."""
        return {len(row["returns"]) for row in self.rows if row["kind"] in kinds}

    def score(self, task: str, frames: int) -> float:
        """Return the score at exactly that many frames of the task's own stage."""
        scores = [row.score for row in self.scores.of_task(task, LEARN, FINAL) if row.frames == frames]
        if not scores:
            raise ResultsError(f"{self.folder} has no evaluation of {task} at {frames} frames")
        return scores[-1]

    def final(self, task: str) -> float:
        """Return the score at the end of the task's own stage."""
        score = final_score(self.scores, task)
        if score is None:
            raise ResultsError(f"{self.folder} has no final evaluation of {task}")
        return score

    def retest(self, task: str) -> float:
        """Return the score of the task's last retest."""
        change = retest_change(self.scores, task)
        if change is None:
            raise ResultsError(f"{self.folder} has no retest of {task}")
        return change.after


def read_runs(root: Path, paths: Iterable[str]) -> list[PublishedRun]:
    """Return the runs named by paths below the root: run folders, folders of run folders, or patterns with `*`."""
    runs = [PublishedRun(root, folder) for path in paths for folder in _run_folders(root, path)]
    if not runs:
        raise ResultsError("names no run folder")
    for run in runs:
        _ = run.scores  # validate now
    return runs


def read_one_run(root: Path, path: str) -> PublishedRun:
    return read_runs(root, [path])[0]


def common_task(runs: Sequence[PublishedRun], wanted: str | None) -> str:
    """Return the wanted task, or the newest one of the first run, after checking that every run learnt it."""
    task = wanted or runs[0].tasks[-1]
    for run in runs:
        if task not in run.tasks:
            raise ResultsError(f"{run.folder} did not learn {task}: name the task with task=NAME")
    return task


def _run_folders(root: Path, path: str) -> list[Path]:
    found = sorted(root.glob(path)) if "*" in path else [root / path]
    if not found:
        raise ResultsError(f"no run folder matches {path}")
    folders: list[Path] = []
    for folder in found:
        inside = sorted(file.parent for file in folder.glob(f"*/{EVALS}"))
        folders += inside if inside and not (folder / EVALS).exists() else [folder]
    return folders
