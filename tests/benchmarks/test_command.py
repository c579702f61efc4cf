"""`python -m benchmarks`: chooses rows, tells how it gets on, writes what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import command
from benchmarks.command import INSTALL, MEASUREMENTS, Measurement, Remaining, main
from benchmarks.table import Aim, Effort, Sample, SpeedComparison
from ctrlformer.errors import ConfigError


def measured(_: Effort) -> SpeedComparison:
    return SpeedComparison(Sample.of([1.0, 2.0, 3.0]), Sample.of([8.0]), "s", "a note")


def fails(_: Effort) -> SpeedComparison:
    raise ConfigError("broken")


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "first": Measurement(measured, Aim(4.0), 1, 1),
        "second": Measurement(measured, Aim(5.0), 1, 1),
        "third": Measurement(measured, Aim(1.0), 1, 1, needs="a_package_that_nobody_has"),
        "last": Measurement(fails, Aim(1.0), 1, 1),
    }
    monkeypatch.setattr(command, "MEASUREMENTS", table)


@pytest.mark.usefixtures("small_table")
def test_rows_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["third", "second", "first"], quick=True, json_file=tmp_path / "bench.json")
    text = capsys.readouterr().out
    assert "[1/3] first" in text
    assert "cores" in text
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["machine"]["effort"] == "quick"
    first, second, third = written["rows"]
    assert first == {
        "row": "first",
        "ours": 2.0,
        "reference": 8.0,
        "ratio": 4.0,
        "aim": ">= 4x",
        "met": True,
        "note": "a note",
        "unit": "s",
        "ours_spread": [1.0, 3.0],
        "reference_spread": [8.0, 8.0],
        "repeats": [3, 1],
    }
    assert second["met"] is False
    assert (third["met"], third["ratio"], third["note"]) == (False, None, INSTALL)


@pytest.mark.usefixtures("small_table")
def test_a_row_that_fails_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="broken"):
        main([], quick=True, json_file=tmp_path / "bench.json")
    assert [row["row"] for row in json.loads((tmp_path / "bench.json").read_text())["rows"]] == [
        "first",
        "second",
        "third",
    ]


def test_the_rest_is_estimated_from_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    clock = Remaining(["update_compact", "start_update"], quick=True)
    usual = MEASUREMENTS["start_update"].quick
    assert clock.left().total_seconds() == MEASUREMENTS["update_compact"].quick + usual
    now += 3 * MEASUREMENTS["update_compact"].quick
    clock.done("update_compact")
    assert clock.left().total_seconds() == 3 * usual
