"""What the fault tests found: rows of `results/faults.jsonl`, and the table of them in docs/reliability.md.

    python tests/faults/tally.py NEW results/faults.jsonl docs/reliability.md

publishes what a run of the tests, or of soak.py, wrote to NEW: it takes the place of what an earlier one found, and the
table is put between its two marks. A row of the table may come from several tests: their cases are summed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctrlformer.storage.files import write_atomic
from ctrlformer.storage.provenance import (
    source_commit,  # bound here and now: some tests put something else in its place
)

SOAK = "soak"  # in place of a test's name: the one line that no test writes
HowMany = Callable[[int, int], int]  # how many cases, of the few of a quick check and of all

BEGIN, END = "<!-- table of faults -->", "<!-- end of the table -->"

# The table's rows in their order: what is done to the software, and what must hold.
ROWS = {
    "kill": ("kill -9 at random moments of a training", "after resume everything bit-identical to an unbroken run"),
    "crash_in_save": ("a crash before and after every file operation of a save", "no run lost, resume bit-identical"),
    "signal": ("SIGTERM or SIGINT at random moments", "checkpoint, exit 143 or 130 within 10 s, resume bit-identical"),
    "second_signal": ("a second signal", "exit at once, resume bit-identical"),
    "resume": (
        "stop and resume at every step, across stages, in evaluations and retests, 20 in a chain",
        "bit-identical",
    ),
    "lock": (
        "two trainings or resumes of one run; a lock left by a dead process",
        "second refused with pid and host; stale lock taken over",
    ),
    "damage": (
        "newest checkpoint or replay segment truncated or bit-flipped",
        "detected, damaged file named, the one before used",
    ),
    "fuzz": (
        "fuzzed checkpoints, manifests, configs and evals.jsonl",
        "one line, exit 2; no traceback, no hang over 5 s, bounded memory",
    ),
    "hostile": (
        "pickles, polyglots, names that lead elsewhere, links, header bombs, huge shapes",
        "nothing executed, nothing written outside the run",
    ),
    "disk": ("ENOSPC, EACCES, EIO or EROFS at each write", "older checkpoint intact, one clear line"),
    "nonfinite": ("NaN or infinity in reward, pixel, loss or gradient", "caught in that update, no bad checkpoint"),
    "memory_refused": ("replay or batch larger than memory", "refused before starting, with size and setting"),
    "outage": (
        "renderer dies, environment raises, tracker unreachable",
        "training continues, or checkpoints and says why",
    ),
    "memory_growth": (
        "a million replay adds and samples; a training of two hours",
        "resident memory grows less than 1 % after warm-up",
    ),
    "names": ("hostile names in reports, in a browser", "shown as text"),
    "old_format": ("a checkpoint of an earlier format", "loads, or names the version needed"),
    "cost": ("checkpoints at their usual distance", "at most 1 % of training time"),
}


class Tally:
    """Counts the cases of one test: every case is tried, however many before it failed."""

    def __init__(self, row: str, test: str) -> None:
        if row not in ROWS:
            raise ValueError(f"{row!r} is no row of the table in tests/faults/tally.py")
        self._row, self._test = row, test
        self._tried = 0
        self.failures: list[str] = []
        self.figures: dict[str, Any] = {}
        """Further numbers worth publishing, such as {"slowest exit, s": 1.2}."""

    @contextmanager
    def case(self, name: object) -> Iterator[None]:
        """One thing tried; any exception inside means that it did not hold."""
        self._tried += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a case that fails in any way is counted
            self.failures.append(f"{name}: {type(error).__name__}: {error}"[:2000])

    def write(self, out: Path) -> None:
        """Add this test's line to the figures; tests in several processes write to the same file."""
        line = {
            "row": self._row,
            "test": self._test,
            "tried": self._tried,
            "held": self._tried - len(self.failures),
            "figures": self.figures,
            "commit": source_commit(),
        }
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)


def table(lines: list[dict[str, Any]]) -> str:
    """The Markdown table of every row that has figures."""
    shown = ["| fault | must hold | tried | held | measured |", "|---|---|---:|---:|---|"]
    for row, (fault, promise) in ROWS.items():
        mine = sorted((line for line in lines if line["row"] == row), key=lambda line: line["test"])
        if mine:
            tried, held = (sum(line[count] for line in mine) for count in ("tried", "held"))
            measured = "; ".join(f"{name}: {value}" for name, value in _together(mine).items())
            shown.append(f"| {fault} | {promise} | {tried:,} | {held:,} | {measured} |")
    return "\n".join(shown) + "\n"


def _together(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of several tests: what they all count is summed."""
    figures: dict[str, Any] = {}
    for line in lines:
        for name, value in line["figures"].items():
            figures[name] = figures[name] + value if name in figures and isinstance(value, int) else value
    return {name: f"{value:,}" if isinstance(value, int) else value for name, value in figures.items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_table(page: str, lines: list[dict[str, Any]]) -> str:
    """The page with the table of these lines between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(lines)}{END}{after}"


def published(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was found by the tests and by the soak, each from its newest run: `new` is a whole run of one of them."""
    (is_soak,) = {line["test"] == SOAK for line in new}
    kept = [line for line in old if (line["test"] == SOAK) != is_soak]
    return sorted(kept + new, key=lambda line: (line["row"], line["test"]))


def main(new: Path, figures: Path, page: Path) -> None:
    lines = published(read_lines(figures) if figures.exists() else [], read_lines(new))
    write_atomic(figures, "".join(json.dumps(line) + "\n" for line in lines).encode())
    write_atomic(page, with_table(page.read_text(), lines).encode())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
