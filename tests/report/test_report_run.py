"""What is read of a run folder, and how runs are named."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from report_folders import PAIR, config, metrics, report_run, scratch, write

from ctrlformer.config import TransferConfig
from ctrlformer.errors import RunError
from ctrlformer.report.report_run import MOST_ROWS, ReportRun, read_runs, thinned


def test_a_method_is_the_preset_and_what_was_changed_in_it(tmp_path: Path) -> None:
    plain = report_run(tmp_path / "plain", config("a"))
    assert plain.method == plain.plain_method == "tiny"
    copied = report_run(tmp_path / "copied", config("a", "b", seed=2, transfer=TransferConfig(heads="copy")))
    assert copied.method == "tiny, transfer.heads copy"
    assert copied.plain_method == "tiny", "a first stage knows nothing of transfer"
    assert copied.tasks == ("a", "b")
    assert copied.budget == 800
    assert copied.seed == 2


def test_a_run_is_finished_when_every_planned_task_has_its_last_evaluation(tmp_path: Path) -> None:
    assert not report_run(tmp_path / "new", config("a")).finished
    assert report_run(tmp_path / "one", config("a"), scratch("a", (0, 1.0), (10, 2.0))).finished
    assert not report_run(tmp_path / "half", config("a", "b"), PAIR[:4]).finished
    assert report_run(tmp_path / "whole", config("a", "b"), PAIR).finished


def test_minutes_are_those_of_the_newest_row(tmp_path: Path) -> None:
    rows = [one | {"minutes": 7.5} for one in metrics(0, [10])]
    assert report_run(tmp_path / "run", config("a"), scratch("a", (0, 1.0)), rows).minutes == 7.5


def test_settings_of_another_version_are_told_by_their_scores_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "old", config("a"), PAIR)
    (folder / "config.json").write_text('{"preset": "gone", "seed": 4, "nonsense": 1}')
    run = ReportRun.read(folder)
    assert (run.config, run.seed, run.tasks) == (None, 4, ("a", "b"))
    assert run.method.startswith("gone, config.json of another version (")


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write(tmp_path / place / "seed1", config("a")) for place in ("x", "y", "z")]
    assert [run.name for run in read_runs(folders)] == ["seed1", "seed1 (2)", "seed1 (3)"]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [("config.json", "[]", "not a JSON object"), ("config.json", "{", "not JSON"), ("evals.jsonl", "{", "cut off")],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    folder = write(tmp_path / "run", config("a"))
    (folder / name).write_text(text)
    with pytest.raises(RunError, match=complaint) as caught:
        ReportRun.read(folder)
    assert name in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to report"):
        read_runs([])
    with pytest.raises(RunError, match="is not a run folder"):
        read_runs([tmp_path])


@pytest.mark.parametrize("count", [0, 1, MOST_ROWS, MOST_ROWS + 1, 5000])
def test_long_logs_are_thinned_evenly_and_no_time_is_lost(count: int) -> None:
    rows = [{"frames": frames, "seconds": 0.5} for frames in range(count)]
    kept = thinned(iter(rows))
    assert len(kept) <= MOST_ROWS + 1
    assert len(kept) >= min(count, MOST_ROWS // 2)
    assert kept[-1:] == [] if not count else kept[-1]["frames"] == count - 1
    assert sum(row["seconds"] for row in kept) == 0.5 * count
    assert len({after["frames"] - before["frames"] for before, after in pairwise(kept[:-1])}) <= 1


def test_seconds_that_are_no_numbers_are_left_alone() -> None:
    rows = [{"seconds": value} for value in ("x", None, 10**400, [], 1.0)] * MOST_ROWS
    assert len(thinned(rows)) <= MOST_ROWS + 1


def test_memory_of_a_page_does_not_grow_with_the_log(tmp_path: Path) -> None:
    def most_memory(rows: int) -> int:
        run = write(tmp_path / f"{rows}", config("a"), PAIR[:1], metrics(0, range(10, 10 * rows + 10, 10), q=1.0))
        tracemalloc.start()
        try:
            ReportRun.read(run)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert most_memory(40_000) < 1.5 * most_memory(4_000)
