"""One run of a sweep: started, or resumed from where an earlier attempt stopped.

As a program, `python -m ctrlformer.sweep.worker` reads a job from its standard input. It stops, and saves, when the
process that started it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ctrlformer.config import from_json
from ctrlformer.errors import CtrlFormerError
from ctrlformer.paper.plan import check_as_planned, is_half_copied
from ctrlformer.storage.files import remove_folder
from ctrlformer.storage.run_folder import CONFIG, RunFolder
from ctrlformer.sweep.jobs import Job
from ctrlformer.training import launch
from ctrlformer.training.callbacks import Callback
from ctrlformer.training.console import console_progress
from ctrlformer.training.signals import EXIT_WITHIN

PATIENCE = 60.0  # seconds for which another process may hold a run: a copy being made of it, or an attempt that dies
SIGNAL_WHEN_PARENT_DIES = 1  # Linux's PR_SET_PDEATHSIG


def carry_out(job: Job, callbacks: Sequence[Callback] = (), exit_within: float | None = None) -> None:
    """Train the run to its end; what an earlier attempt has done is not done again."""
    folder, planned = Path(job.folder), from_json(job.config)
    parent = RunFolder.open(Path(job.parent)) if job.parent else None
    if parent:
        _discard_half_copy(folder, parent)
    if (folder / CONFIG).exists():
        check_as_planned(RunFolder.open(folder), planned)
        launch.resume(folder, callbacks=callbacks, exit_within=exit_within, patience=PATIENCE)
    elif parent:
        stage = planned.stages[-1]
        (task,) = stage.tasks
        launch.add(
            parent.path,
            task,
            frames=stage.frames,
            transfer=stage.transfer,
            into=folder,
            callbacks=callbacks,
            exit_within=exit_within,
            patience=PATIENCE,
        )
    else:
        launch.start(planned, folder, callbacks=callbacks, exit_within=exit_within)


def _discard_half_copy(folder: Path, parent: RunFolder) -> None:
    """Remove a copy that was cut off: there is nothing in it that the parent does not have."""
    with contextlib.ExitStack() as held:
        held.enter_context(parent.lock(PATIENCE))  # whoever copies it holds it
        if not (folder / CONFIG).exists():
            return
        found = RunFolder.open(folder)
        if is_half_copied(found, parent.config):
            held.enter_context(found.lock(PATIENCE))
            if is_half_copied(RunFolder.open(folder), parent.config):
                remove_folder(folder)


def main() -> int:
    """The exit code is that of the command line: 0, 2 after a clear line, 130 or 143 after a signal."""
    signal.signal(signal.SIGTERM, _terminate)
    _stop_with_parent()
    try:
        with console_progress() as progress:
            carry_out(Job.from_json(sys.stdin.read()), [progress], EXIT_WITHIN)
    except (CtrlFormerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _stop_with_parent() -> None:
    ctypes.CDLL(None).prctl(SIGNAL_WHEN_PARENT_DIES, signal.SIGTERM)
    if os.getppid() == 1:  # it has died already
        raise SystemExit(128 + signal.SIGTERM)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
