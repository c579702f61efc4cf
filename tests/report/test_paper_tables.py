"""Tables against the paper, found beside the runs they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import config, scratch, write

from ctrlformer.errors import RunError
from ctrlformer.report.page import write_report
from ctrlformer.report.paper_tables import read_tables

TABLE = {
    "title": "same_domain: Table <1>",
    "runs": ["one", "other"],
    "table": [["method", "ours", "paper"], ["drq", "107", "<b>12</b>"]],
    "notes": ["20,000 frames of each task & 2 seeds"],
}


def experiment(out: Path, table: Any = TABLE) -> Path:
    """A run of an experiment whose table has been written."""
    run = write(out / "runs" / "one", config("a"), scratch("a", (0, 1.0), (10, 5.0)))
    (out / "same_domain-cpu.json").write_text(json.dumps(table))
    return run


def test_the_page_of_an_experiments_run_has_its_table(tmp_path: Path) -> None:
    page = write_report([experiment(tmp_path)], tmp_path / "page.html").read_text()
    assert "Beside the paper" in page
    assert "<td>107</td><td>&lt;b&gt;12&lt;/b&gt;</td>" in page
    assert "frames of each task &amp; 2 seeds" in page


def test_a_table_of_other_runs_is_not_shown(tmp_path: Path) -> None:
    run = experiment(tmp_path, TABLE | {"runs": ["other"]})
    assert read_tables([run]) == []
    assert "Beside the paper" not in write_report([run], tmp_path / "page.html").read_text()


def test_one_table_for_all_its_runs(tmp_path: Path) -> None:
    first = experiment(tmp_path)
    second = write(tmp_path / "runs" / "other", config("a", seed=2))
    assert [table.title for table in read_tables([first, second])] == ["same_domain: Table <1>"]


@pytest.mark.parametrize(
    "table", [[], {}, TABLE | {"table": 3}, TABLE | {"table": []}, TABLE | {"notes": "x"}, TABLE | {"runs": None}]
)
def test_a_table_that_makes_no_sense_is_named(tmp_path: Path, table: Any) -> None:
    with pytest.raises(RunError, match=r"same_domain-cpu.json makes no sense"):
        read_tables([experiment(tmp_path, table)])
