"""The counts behind docs/reliability.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tally import SOAK, Tally, published, read_lines, table, with_table

ROOT = Path(__file__).parents[2]


def test_every_case_is_tried_and_those_that_fail_are_counted(tmp_path: Path) -> None:
    counts = Tally("kill", "test_kill")
    for number in range(3):
        with counts.case(number):
            assert number != 1
    with counts.case("nothing is raised"), pytest.raises(ValueError, match="never"):
        pass
    counts.figures["slowest, s"] = 2.5
    counts.write(tmp_path / "faults.jsonl")
    assert len(counts.failures) == 2
    assert counts.failures[0].startswith("1: AssertionError")
    assert "| 4 | 2 | slowest, s: 2.5 |" in table(read_lines(tmp_path / "faults.jsonl"))


def test_tests_of_one_row_are_summed() -> None:
    lines = [{"row": "kill", "test": f"{n}", "tried": n, "held": n, "figures": {"ends": n}} for n in (1, 2000)]
    assert "| 2,001 | 2,001 | ends: 2,001 |" in table(lines)


def test_a_new_run_takes_the_place_of_the_old_and_leaves_the_soak_alone() -> None:
    def line(test: str, tried: int) -> dict[str, Any]:
        return {"row": "kill", "test": test, "tried": tried}

    old = [line("gone", 1), line(SOAK, 2)]
    assert published(old, [line("new", 3)]) == [line("new", 3), line(SOAK, 2)]
    assert published(old, [line(SOAK, 4)]) == [line("gone", 1), line(SOAK, 4)]


def test_an_unknown_row_is_refused() -> None:
    with pytest.raises(ValueError, match="no row"):
        Tally("earthquake", "test")


def test_the_published_table_is_that_of_the_published_figures() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    figures = ROOT / "results" / "faults.jsonl"
    assert with_table(page, read_lines(figures) if figures.exists() else []) == page
