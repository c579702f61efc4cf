"""A disk that is full, broken, read-only or not ours, at any write of a training."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_runs import STEPS, StopAt, digest, evenly, go_on, stop, watched
from small_runs import assert_same, outcome
from tally import HowMany, Tally

from ctrlformer.errors import CtrlFormerError
from ctrlformer.storage import checkpoint
from ctrlformer.training import launch

ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.EROFS)


class Refusing:
    """Refuses one file operation, and lets the others pass."""

    def __init__(self, operation: int | None = None, code: int = 0) -> None:
        self._operation, self._code = operation, code
        self.names: list[str] = []

    def __call__(self, name: str, do: Callable[[], Any]) -> Any:
        self.names.append(name)
        if len(self.names) - 1 == self._operation:
            raise OSError(self._code, os.strerror(self._code))
        return do()


@pytest.mark.fault("disk")
@pytest.mark.usefixtures("quick_trainings")
def test_every_refused_write_is_one_line_and_resume_is_exact(
    tally: Tally, how_many: HowMany, expected: dict[str, Any], tmp_path: Path
) -> None:
    """The writes are those of a resume, a last evaluation, a stage's end, the next one's start, and two checkpoints."""
    begun = tmp_path / "begun"
    stop(begun, StopAt(step=STEPS - 1))
    counted = Refusing()
    shutil.copytree(begun, tmp_path / "counted")
    with watched(counted):
        stop(tmp_path / "counted", StopAt(step=STEPS + 1))
    results: dict[str, str | None] = {}
    cases = [(operation, code) for operation in range(len(counted.names)) for code in ERRORS]
    for operation, code in evenly(cases, how_many(5, len(cases))):
        with tally.case(f"{errno.errorcode[code]} at {counted.names[operation]} {operation}"):
            folder = tmp_path / "run"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(begun, folder)
            refuse(folder, operation, code)
            checkpoint.load(folder / "checkpoints", warn=pytest.fail)
            state = digest(folder)  # different errors leave the same behind: it goes on only once
            if state not in results:
                results[state] = "did not go on"
                assert_same(outcome(go_on(folder)), expected)
                results[state] = None
            assert results[state] is None
    tally.figures["writes refused"] = len(counted.names)


def refuse(folder: Path, operation: int, code: int) -> None:
    """Go on with the run as when its operations were counted, until that one is refused."""
    disk = Refusing(operation, code)
    with watched(disk), pytest.raises(CtrlFormerError) as refused:
        launch.resume(folder, callbacks=[StopAt(step=STEPS + 1)])
    assert len(disk.names) > operation
    message = str(refused.value)
    assert "\n" not in message
    assert os.strerror(code) in message
    assert str(folder) in message
