"""Measuring in turn, comparing by medians, and what a row says of it."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from benchmarks.table import AHEAD, Aim, Sample, SpeedComparison, TableRow, alternate, as_table


def test_both_are_run_in_turn_and_warm_ups_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    calls: list[str] = []

    def takes(name: str, seconds: list[float]) -> None:
        nonlocal now
        calls.append(name)
        now += seconds.pop(0)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    ours_take, reference_takes = [50.0, 1.0, 3.0, 2.0], [50.0, 8.0, 8.0, 9.0]
    ours, reference = alternate(
        lambda: takes("ours", ours_take), lambda: takes("reference", reference_takes), repeats=3
    )
    assert calls == ["ours", "reference"] * 4
    assert ours == Sample(2.0, 1.0, 3.0, 3)
    assert reference == Sample(8.0, 8.0, 9.0, 3)


@pytest.mark.parametrize(
    ("ours", "reference", "more_is_better", "sound", "ratio", "met"),
    [
        (1.0, 2.0, False, True, 2.0, True),
        (1.0, 1.9, False, True, 1.9, False),
        (4.0, 2.0, True, True, 2.0, True),
        (2.0, 4.0, True, True, 0.5, False),
        (1.0, 5.0, False, False, 5.0, False),
    ],
)
def test_a_ratio_says_how_many_times_better_ours_is(
    ours: float, reference: float, more_is_better: bool, sound: bool, ratio: float, met: bool
) -> None:
    found = SpeedComparison(Sample.of([ours]), Sample.of([reference]), "s", "why", more_is_better, sound)
    row = TableRow("name", Aim(2.0), found)
    assert found.ratio == ratio
    assert row.met is met
    assert {"row": "name", "ratio": ratio, "met": met, "aim": ">= 2x", "note": "why"}.items() <= row.to_json().items()
    assert ("MISSED" in str(row)) is not met


def test_a_skipped_row_has_no_ratio_and_says_why() -> None:
    row = TableRow("name", AHEAD, None, "skipped: because")
    written = row.to_json()
    assert written["met"] is False
    assert written["ratio"] is written["ours"] is None
    assert written["note"] == "skipped: because"
    assert "skipped: because" in str(row)


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    slow = SpeedComparison(Sample.of([0.00759123]), Sample.of([0.0183456]), "s", "")
    many = SpeedComparison(Sample.of([27640.0]), Sample.of([5651.0]), "frames/min", "", more_is_better=True)
    rows = [
        TableRow("training_memory", Aim(1.5), slow),
        TableRow("training_parts", AHEAD, many),
        TableRow("none", Aim(0.55), None, "no"),
    ]
    console = Console(width=80, record=True, quiet=False, file=io.StringIO())
    console.print(as_table(rows))
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    assert len(lines) == 2 + len(rows)  # headings and their line; nothing is wrapped
