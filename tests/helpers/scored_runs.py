"""Made-up evaluations, for the tests of measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrlformer.analysis.metrics import RunScores

Row = dict[str, Any]


def row(stage: int, task: str, kind: str, frames: int, mean: float) -> Row:
    return {"stage": stage, "task": task, "kind": kind, "frames": frames, "mean": mean}


def one_task(seed: int, *points: tuple[int, float], task: str = "b") -> RunScores:
    """A run that learns one task from scratch; its last point is the final evaluation."""
    rows = [row(0, task, "learn", frames, mean) for frames, mean in points]
    return RunScores.of(f"scratch{seed}", seed, [*rows[:-1], rows[-1] | {"kind": "final"}])


SEQUENCE = [
    row(0, "a", "learn", 0, 10.0),
    row(0, "a", "learn", 50, 400.0),
    row(0, "a", "final", 100, 800.0),
    row(1, "b", "learn", 0, 20.0),
    row(1, "a", "retest", 50, 820.0),
    row(1, "b", "final", 100, 600.0),
    row(1, "a", "retest", 100, 700.0),
    row(2, "c", "learn", 0, 0.0),
    row(2, "c", "final", 200, 900.0),
    row(2, "a", "retest", 200, 740.0),
    row(2, "b", "retest", 200, 630.0),
]
RUN = RunScores.of("sequence", 1, SEQUENCE)
TOGETHER = RunScores.of(
    "together",
    1,
    [
        row(0, "a", "final", 100, 300.0),
        row(0, "b", "final", 100, 500.0),
        row(1, "c", "final", 100, 700.0),
        row(1, "a", "retest", 100, 200.0),
        row(1, "b", "retest", 100, 450.0),
    ],
)


def write(folder: Path, rows: Sequence[Row], config: str | None = '{"seed": 3, "unknown": 1}') -> Path:
    folder.mkdir()
    (folder / "evals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if config is not None:
        (folder / "config.json").write_text(config)
    return folder
