"""A crash before and after every file operation of a whole training, checkpoints and ends of stages included."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from broken_runs import Snapshots, go_on, start, watched
from small_runs import assert_same, outcome
from tally import HowMany, Tally


@pytest.mark.fault("crash_in_save")
@pytest.mark.usefixtures("quick_trainings")
def test_resume_after_a_crash_at_any_file_operation_is_exact(
    tally: Tally, how_many: HowMany, expected: dict[str, Any], tmp_path: Path
) -> None:
    snapshots = Snapshots(tmp_path / "run", tmp_path, every=how_many(150, 1))
    with watched(snapshots):
        start(tmp_path / "run")
    assert set(snapshots.operations) >= {"open", "write", "fsync", "replace", "unlink", "mkdir"}

    @cache  # a file operation such as fsync changes nothing that the next process could see
    def complaint(copy: Path) -> str | None:
        try:
            assert_same(outcome(go_on(copy)), expected)
        except Exception as error:  # noqa: BLE001 - counted below, once for every moment with this state
            return f"{type(error).__name__}: {error}"
        return None

    for moment, copy in snapshots.moments:
        with tally.case(moment):
            assert complaint(copy) is None
    tally.figures["file operations"] = len(snapshots.operations)
