"""`python -m benchmarks`: every row of the speed table, measured, printed and written."""

from __future__ import annotations

import difflib
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from benchmarks import env_rows, memory_rows, replay_rows, start_rows, task_rows, training_rows, update_rows
from benchmarks.table import AHEAD, FULL, QUICK, Aim, Effort, SpeedComparison, TableRow, as_table
from ctrlformer.errors import ConfigError
from ctrlformer.storage.files import JSON, to_json, write_atomic
from ctrlformer.storage.provenance import source_commit
from ctrlformer.system.memory import keep_freed_memory

SB3, TORCHRL = "stable_baselines3", "torchrl"
INSTALL = "skipped: pip install 'ctrlformer[bench]'"


class Measurement(NamedTuple):
    measure: Callable[[Effort], SpeedComparison]
    aim: Aim
    quick: float  # seconds it takes about, with --quick
    full: float
    needs: str | None = None


MEASUREMENTS = {
    "update_paper": Measurement(update_rows.paper, Aim(2.0), 25, 110),
    "update_compact": Measurement(update_rows.compact_beside_vit, Aim(1.8), 6, 12),
    "update_compact_vit": Measurement(update_rows.compact_vit, Aim(3.0), 8, 20),
    "update_drq": Measurement(update_rows.drq, AHEAD, 15, 70),
    "update_drq_sb3": Measurement(update_rows.drq_beside_sb3, AHEAD, 10, 40, SB3),
    "peak_share": Measurement(update_rows.peak_share, Aim(0.55), 12, 50),
    "tasks_first": Measurement(task_rows.first_task, task_rows.WITHIN, 60, 105),
    "tasks_newest": Measurement(task_rows.newest_task, task_rows.WITHIN, 0, 0),
    "sample_drq": Measurement(replay_rows.sample_drq, Aim(5.0), 12, 25),
    "sample_sb3": Measurement(replay_rows.sample_sb3, AHEAD, 12, 25, SB3),
    "sample_torchrl": Measurement(replay_rows.sample_torchrl, AHEAD, 12, 25, TORCHRL),
    "memory_drq": Measurement(replay_rows.memory_drq, Aim(5.0), 1, 1),
    "memory_sb3": Measurement(replay_rows.memory_sb3, Aim(5.0), 1, 1, SB3),
    "memory_torchrl": Measurement(replay_rows.memory_torchrl, Aim(5.0), 1, 1, TORCHRL),
    "env_step": Measurement(env_rows.env_step, Aim(1.5), 6, 12),
    "training_busy": Measurement(training_rows.busy, Aim(0.9), 40, 90),
    "training_parts": Measurement(training_rows.beside_parts, AHEAD, 0, 0),
    "training_sb3": Measurement(training_rows.beside_sb3, AHEAD, 25, 80, SB3),
    "training_memory": Measurement(memory_rows.training_memory, Aim(1.0), 25, 25),
    "start_help": Measurement(start_rows.help_text, Aim(1.0), 2, 5),
    "start_update": Measurement(start_rows.first_update, Aim(1.0), 20, 20),
}


def main(names: Sequence[str], quick: bool, json_file: Path | None) -> None:
    """Measure the named rows, or all; the file is written anew after every row, so that a stop loses nothing."""
    chosen = _choose(names)
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"--json {json_file}: there is no folder {json_file.parent}; make it first")
    keep_freed_memory()
    console, machine = Console(highlight=False), describe_machine(quick)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items()), soft_wrap=True)
    clock, rows = Remaining(chosen, quick), list[TableRow]()
    for number, name in enumerate(chosen, start=1):
        say = f"[{number}/{len(chosen)}] {name} ... about {clock.left()} left in all"
        console.print(say, markup=False, soft_wrap=True)
        rows.append(measure(name, QUICK if quick else FULL))
        clock.done(name)
        console.print(f"  {rows[-1]}", markup=False, soft_wrap=True)
        if json_file is not None:
            write_atomic(json_file, to_json({"machine": machine, "rows": [row.to_json() for row in rows]}))
    console.print(as_table(rows))
    for row in rows:
        console.print(f"{row.name}: {row.to_json()['note']}", markup=False, soft_wrap=True)


def measure(name: str, effort: Effort) -> TableRow:
    """One row; a word in its place where the peer it needs is not installed."""
    wanted = MEASUREMENTS[name]
    if wanted.needs is not None and importlib.util.find_spec(wanted.needs) is None:
        return TableRow(name, wanted.aim, None, INSTALL)
    return TableRow(name, wanted.aim, wanted.measure(effort))


def describe_machine(quick: bool) -> dict[str, JSON]:
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),  # far from 0: other programs disturb the figures
        "commit": source_commit() or "unknown",
        "effort": "quick" if quick else "full",
    }


class Remaining:
    """How long the rest takes: what the rows usually take, corrected by what those behind us took."""

    def __init__(self, names: Sequence[str], quick: bool) -> None:
        self._usual = {name: MEASUREMENTS[name].quick if quick else MEASUREMENTS[name].full for name in names}
        self._behind, self._started = 0.0, time.monotonic()

    def done(self, name: str) -> None:
        self._behind += self._usual.pop(name)

    def left(self) -> timedelta:
        """Whole seconds, which read as 0:01:30."""
        pace = (time.monotonic() - self._started) / self._behind if self._behind else 1.0
        return timedelta(seconds=round(pace * sum(self._usual.values())))


def _choose(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in MEASUREMENTS:
            near = difflib.get_close_matches(name, MEASUREMENTS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(MEASUREMENTS)}"
            raise ConfigError(f"unknown row {name!r}: {hint}")
    return [name for name in MEASUREMENTS if not names or name in names]
