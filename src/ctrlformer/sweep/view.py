"""All runs of a sweep in one view: a table redrawn in place on a terminal, plain lines elsewhere.

How far a run is stands in its own folder, wherever it is trained; nothing else has to be sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ctrlformer.paper.plan import RUNS, PlannedRun, RunState
from ctrlformer.storage.files import READ, open_regular, parse_json
from ctrlformer.storage.run_folder import EVALS, METRICS, Row
from ctrlformer.sweep.schedule import Status

PLAIN_SECONDS = 60.0  # between two plain reports of the running ones
LIVE_SECONDS = 2.0  # between two looks at the folders
TAIL_BYTES = 1 << 14  # of a log: room for its last row


class SweepView:
    """Shows runs while a `with` lasts."""

    def __init__(
        self,
        runs: Mapping[str, PlannedRun],
        out: Path,
        console: Console,
        states: Mapping[str, RunState],
        live: bool = True,
    ) -> None:
        self._runs, self._folder, self._console = runs, out / RUNS, console
        self._statuses = {name: Status("finished") for name, state in states.items() if state == "finished"}
        self._live = Live(console=console, auto_refresh=False, transient=True) if live and console.is_terminal else None
        self._shown = time.monotonic()

    def __enter__(self) -> SweepView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def changed(self, name: str, status: Status) -> None:
        self._statuses[name] = status
        what = "resumed" if status.state == "running" and status.attempts > 1 else status.state
        line = f"[{self._count('finished')}/{len(self._runs)}] {what}: {name}"
        self._console.print(line + (f": {status.reason}" if status.reason else ""), markup=False, soft_wrap=True)

    def refresh(self) -> None:
        now = time.monotonic()
        if now - self._shown < (LIVE_SECONDS if self._live else PLAIN_SECONDS):
            return
        self._shown = now
        running = {name: self._how_far(name) for name, status in self._statuses.items() if status.state == "running"}
        if self._live:
            self._live.update(_table(running), refresh=True)
            return
        for name, words in running.items():
            self._console.print(f"{name}: {words}", markup=False, soft_wrap=True)

    def _count(self, state: str) -> int:
        return sum(status.state == state for status in self._statuses.values())

    def _how_far(self, name: str) -> str:
        """Of its own stage, from its folder alone."""
        stage = len(self._runs[name].config.stages) - 1
        training, evaluation = (last_row(self._folder / name / log) for log in (METRICS, EVALS))
        if training is None or training.get("stage") != stage:
            return "queued or beginning"
        words = f"{training.get('task')} {training.get('frames'):,} of {self._runs[name].stage.frames:,} frames"
        if evaluation and evaluation.get("stage") == stage and "mean" in evaluation:
            words += f", {evaluation.get('kind')} {evaluation['mean']:.1f}"
        return words


def last_row(path: Path) -> Row | None:
    """The newest whole row of a log that another process may be writing; none if there is none."""
    try:
        with open(open_regular(path, READ), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            *_, line, _ = file.read().split(b"\n")
        row = parse_json(line)
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def _table(running: Mapping[str, str]) -> Table:
    table = Table("run", "how far")
    for name, words in running.items():
        table.add_row(Text(name), Text(words))
    return table
