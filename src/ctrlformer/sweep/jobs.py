"""One run as an executor gets it: plain strings, so that it can travel to another process or machine."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from ctrlformer.config import to_json
from ctrlformer.paper.plan import RUNS, PlannedRun

LOGS = "logs"
"""Folder of what the runs' processes print, inside `--out`."""


@dataclass(frozen=True)
class Job:
    name: str
    folder: str
    config: str
    """As JSON."""
    parent: str | None
    """Folder of the run that it continues."""
    log: str
    """File for what its process prints."""

    @classmethod
    def of(cls, run: PlannedRun, out: Path) -> Job:
        runs = out.resolve() / RUNS
        parent = str(runs / run.parent) if run.parent else None
        log = out.resolve() / LOGS / f"{run.name}.log"
        return cls(run.name, str(runs / run.name), to_json(run.config), parent, str(log))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))
