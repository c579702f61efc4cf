"""Trainings that are broken on purpose, and how: at a moment, at a file operation, by a refused write.

They are as small as trainings can be, because thousands are made: two tasks one after the other, 12 steps each, with
evaluations, checkpoints, log rows, updates and ends of episodes at different steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from small_runs import SignalAt, small_config

import ctrlformer.replay.segment_log
import ctrlformer.report.page
import ctrlformer.storage.files
import ctrlformer.storage.provenance
import ctrlformer.storage.run_folder
import ctrlformer.training.run_report
import ctrlformer.training.trainer
from ctrlformer.config import Config
from ctrlformer.storage.run_folder import CONFIG, RunFolder
from ctrlformer.training import launch
from ctrlformer.training.callbacks import StageInfo

Item = TypeVar("Item")

TASKS = ("toy/reach", "toy/slide", "toy/reach_sparse")
REPEAT = 10  # frames of a step; an episode has 5 steps
STEPS = 12  # of each task
LENGTHY = {
    "training__frames": 100 * REPEAT,
    "training__seed_steps": 60,
    "training__eval_every_frames": 65 * REPEAT,
    "training__checkpoint_every_frames": 33 * REPEAT,
    "training__log_every_steps": 23,
    "agent__update_every": 4,
}
"""Changes for 200 steps in place of 24."""

SETTINGS: dict[str, Any] = {
    "training__frames": STEPS * REPEAT,
    "training__seed_steps": 3,
    "training__log_every_steps": 5,
    "training__eval_every_frames": 7 * REPEAT,
    "training__checkpoint_every_frames": 6 * REPEAT,
    "training__precision": "fp32",
    "transfer__protect": "rehearse",
    "transfer__rehearsal_batch": 2,
    "transfer__kept_observations": 8,
    "env__image_size": 42,
    "env__action_repeat": REPEAT,
    "agent__update_every": 2,
}


def broken_config(*tasks: str, **changes: Any) -> Config:
    return small_config(*(tasks or TASKS[:2]), **{**SETTINGS, **changes})


def start(folder: Path, config: Config | None = None, at: StopAt | None = None) -> RunFolder:
    return launch.start(config or broken_config(), folder, callbacks=[at] if at else [])


def go_on(folder: Path, config: Config | None = None) -> RunFolder:
    """What a user does after a crash: resume, or start again where nothing had been written yet."""
    if (folder / CONFIG).exists():
        return launch.resume(folder)
    return start(folder, config)


def stop(folder: Path, at: StopAt, config: Config | None = None) -> None:
    """Train in `folder`, from the start or from where it stands, until the signal."""
    with pytest.raises(KeyboardInterrupt):
        launch.resume(folder, callbacks=[at]) if (folder / CONFIG).exists() else start(folder, config, at)


def without_waste(patch: pytest.MonkeyPatch) -> None:
    """Write the same files without what takes most of so small a training's time: pictures, pages, git.

    Time goes by evenly, so that two trainings that do the same write the same bytes.
    """
    ticks = itertools.count()
    patch.setattr(ctrlformer.training.trainer, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    patch.setattr(ctrlformer.training.run_report, "learning_curve", lambda title, rows: b"a picture")
    patch.setattr(ctrlformer.report.page, "render", lambda runs, experiments: "a page")
    patch.setattr(ctrlformer.storage.run_folder, "source_commit", lambda: None)
    patch.setattr(ctrlformer.storage.provenance, "_version", lambda package: "1")


class StopAt(SignalAt):
    """Counts steps over all stages."""

    def _frames(self, stage: StageInfo) -> int:
        return (stage.number * stage.budget + stage.frames) * 2 // REPEAT


# File operations


Around = Callable[[str, Callable[[], Any]], Any]
"""Is given a file operation's name and the way to do it."""

CHANGING = ("mkdir", "fsync", "replace", "unlink", "rmdir", "ftruncate", "write")  # functions of `os`
WRITERS = (
    ctrlformer.storage.files,
    ctrlformer.storage.run_folder,
    ctrlformer.replay.segment_log,
)  # modules that open files


@contextlib.contextmanager
def watched(around: Around) -> Iterator[None]:
    """Every operation of this package that changes files or folders passes through `around`.

    Files are written in two halves, so that something can happen in the middle of one. What `around` itself does to
    files is not watched.
    """
    busy = False
    real_open = os.open

    def pass_through(name: str, do: Callable[[], Any]) -> Any:
        nonlocal busy
        if busy:
            return do()
        busy = True
        try:
            return around(name, do)
        finally:
            busy = False

    class Raw(io.FileIO):
        halved = False

        def write(self, data: Any) -> int:
            """The first half, then (a buffered file asks again for what was not written) the rest."""
            part = data if self.halved else data[: (len(data) + 1) // 2]
            self.halved, whole = True, super().write
            return pass_through("write", lambda: whole(part))  # type: ignore[no-any-return]

        def truncate(self, size: int | None = None) -> int:
            whole = super().truncate
            return pass_through("truncate", lambda: whole(size))  # type: ignore[no-any-return]

    def opened(descriptor: int, mode: str) -> Any:
        return io.BufferedWriter(Raw(descriptor, mode)) if mode == "wb" else open(descriptor, mode)

    def os_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if not flags & (os.O_WRONLY | os.O_CREAT):
            return real_open(path, flags, *rest, **named)
        return pass_through("open", lambda: real_open(path, flags, *rest, **named))  # type: ignore[no-any-return]

    def watched_function(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(*words: Any, **named: Any) -> Any:
            if name == "mkdir" and os.path.isdir(words[0]):
                return real(*words, **named)  # changes nothing, whatever comes of it
            return pass_through(name, lambda: real(*words, **named))

        return function

    with pytest.MonkeyPatch.context() as patch:
        for module in WRITERS:
            patch.setattr(module, "open", opened, raising=False)
        for name in CHANGING:
            patch.setattr(os, name, watched_function(name, getattr(os, name)))
        patch.setattr(os, "open", os_open)
        yield


class Snapshots:
    """Every state that a folder is in before and after a file operation: what a crash there leaves behind.

    A killed process does nothing more to its files, and what it has written is the system's; so a copy of the folder
    at that moment is what the next process finds.
    """

    def __init__(self, folder: Path, into: Path, every: int = 1) -> None:
        self._folder, self._into, self._every = folder, into, every
        self._copies: dict[str, Path] = {}
        self.moments: list[tuple[str, Path]] = []
        """What was about to happen or had happened, and a copy of the folder then; equal states share one."""
        self.operations: list[str] = []

    def __call__(self, name: str, do: Callable[[], Any]) -> Any:
        number = len(self.operations)
        self.operations.append(name)
        if number % self._every:
            return do()
        self._take(f"before {name} {number}")
        done = do()
        self._take(f"after {name} {number}")
        return done

    def _take(self, moment: str) -> None:
        state = digest(self._folder)
        if state not in self._copies:
            self._copies[state] = self._into / f"{len(self._copies)}"
            if self._folder.exists():
                shutil.copytree(self._folder, self._copies[state])
        self.moments.append((moment, self._copies[state]))


def digest(folder: Path) -> str:
    """A checksum of every name and byte in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(f"{path.relative_to(folder)}\0{path.is_dir()}\0".encode())
        if path.is_file():
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


# Processes of their own


def forked(work: Callable[[], object], complaints: Path) -> int:
    """The process id of a child that does `work`; its exit code is that of `sys.exit`, or 0. It prints to a file."""
    child = os.fork()
    if child:
        return child
    code = 99  # of what no program should do: an exception that nobody catches
    try:
        printed = os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
        answer = work()
        code = answer if isinstance(answer, int) else 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # noqa: BLE001 - a child must never come back into the test
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(child: int) -> int:
    """The exit code of a child that is waited for, minus the signal if one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def frozen(child: int) -> bool:
    """Halt a child where it is; false if it had ended. It cannot end by itself before the blow that follows."""
    os.kill(child, signal.SIGSTOP)
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


def evenly(items: Sequence[Item], count: int) -> Sequence[Item]:
    """So many of the items, from the first to the last; all if there are no more."""
    if count >= len(items):
        return items
    return [items[round(place * (len(items) - 1) / max(1, count - 1))] for place in range(count)]
