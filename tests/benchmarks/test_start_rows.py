"""Real commands in their own processes, timed to their first sign of life."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_runs

from benchmarks.start_rows import seconds_to_first_update, updates_logged
from ctrlformer.errors import RunError
from ctrlformer.storage.run_folder import METRICS


def test_a_training_is_stopped_after_its_first_update() -> None:
    words = ["train", "toy/reach", *small_runs.flags(), "--frames", "1000000", "--training.log-every-steps", "1"]
    first_step, first_update = seconds_to_first_update(words)
    assert 0 < first_step <= first_update < 120


def test_a_training_that_fails_is_one_line() -> None:
    with pytest.raises(RunError, match="before its first update: error: unknown task"):
        seconds_to_first_update(["train", "no_such_task"])


def test_the_newest_row_counts(tmp_path: Path) -> None:
    assert updates_logged(tmp_path) == -1
    (tmp_path / METRICS).touch()  # a run's first checkpoint makes it, before any step
    assert updates_logged(tmp_path) == -1
    (tmp_path / METRICS).write_text('{"updates": 0}\n')
    assert updates_logged(tmp_path) == 0
    (tmp_path / METRICS).write_text('{"updates": 0}\n{"updates": 3}\n')
    assert updates_logged(tmp_path) == 3
