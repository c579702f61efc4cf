"""Run folders with made-up rows, for the tests of reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrlformer.config import Config, StageConfig, TransferConfig, to_json
from ctrlformer.config.presets import preset
from ctrlformer.report.report_run import ReportRun

Row = dict[str, Any]


def row(stage: int, task: str, kind: str, frames: int, mean: float) -> Row:
    return {"stage": stage, "task": task, "kind": kind, "frames": frames, "mean": mean, "minutes": frames / 1000}


def scratch(task: str, *points: tuple[int, float]) -> list[Row]:
    rows = [row(0, task, "learn", frames, mean) for frames, mean in points]
    return [*rows[:-1], rows[-1] | {"kind": "final"}]


PAIR = [
    *scratch("a", (0, 10.0), (50, 400.0), (100, 800.0)),
    row(1, "b", "learn", 0, 100.0),
    row(1, "b", "final", 100, 500.0),
    row(1, "a", "retest", 100, 600.0),
]


def config(*tasks: str, seed: int = 1, transfer: TransferConfig | None = None) -> Config:
    """As `train` makes it for the first task, and `add` for the others."""
    plain = dataclasses.replace(preset("tiny"), tasks=tasks[:1], seed=seed)
    added = tuple(StageConfig((task,), 400, transfer or plain.transfer) for task in tasks[1:])
    return dataclasses.replace(plain, added=added)


def metrics(stage: int, frames: Sequence[int], **figures: float) -> list[Row]:
    return [{"stage": stage, "task": "a", "frames": frame, "seconds": 2.0, **figures} for frame in frames]


def write(folder: Path, settings: Config, evals: Sequence[Row] = (), logged: Sequence[Row] = ()) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(to_json(settings))
    (folder / "evals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in evals))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in logged))
    return folder


def report_run(folder: Path, settings: Config, evals: Sequence[Row] = (), logged: Sequence[Row] = ()) -> ReportRun:
    return ReportRun.read(write(folder, settings, evals, logged))
