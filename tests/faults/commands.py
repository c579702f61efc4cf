"""The real commands on untrusted files, in this process: what they do is one of a few clear things."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import small_runs
import torch
from PIL import Image

from ctrlformer.cli import main
from ctrlformer.cli.arguments import Command
from ctrlformer.storage import run_folder
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training.trainer import Trainer

PROCESSOR_SECONDS, CLOCK_SECONDS = 5.0, 120.0  # the second is long: other programs may have the processors
MEMORY_BYTES = 1 << 30  # how much more than before a command may ever hold
ADDRESS_BYTES = 6 << 30  # how much more it may even ask for: a bomb ends here, and not with the machine

SETTINGS = {
    "training__frames": 16,
    "training__seed_steps": 3,
    "training__log_every_steps": 2,
    "training__checkpoint_every_frames": 4,
    "transfer__protect": "rehearse",
    "transfer__kept_observations": 4,
    "transfer__rehearsal_batch": 2,
}


class Reached(BaseException):
    """A training has read all its files and would now begin to learn."""


def make_run(folder: Path) -> RunFolder:
    """A real run, stopped in the middle of an episode of its second stage, with an explanation beside it."""
    config = small_runs.small_config("toy/reach", "toy/slide", **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        small_runs.start(folder, config, small_runs.SignalAt(step=5, stage="toy/slide"))
    explained = folder / "explain"
    explained.mkdir()
    Image.new("RGB", (4, 4)).save(explained / "a.png")
    task = {"task": "toy/reach", "method": "attention rollout", "attention": "a.png", "video": None}
    task |= {"share_on_moving": {"trained": 0.2, "untrained": 0.1, "pixels": 0.02}}
    task |= {"after_later_stages": [{"tasks": ["toy/slide"], "similarity": 0.9, "file": "a.png"}]}
    alike = {"what": "learned policy tokens", "chord": "a.png", "heat": "a.png"}
    (explained / "explain.json").write_text(json.dumps({"tasks": [task], "similarity": [alike]}))
    return RunFolder.open(folder)


def finish(run: RunFolder, folder: Path) -> RunFolder:
    """A copy of the run that has come to its end."""
    shutil.copytree(run.path, folder)
    from ctrlformer.training import launch

    return launch.resume(folder)


def without_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands do everything but learn: `Reached` is what comes in its place."""

    def reached(*_: object) -> NoReturn:
        raise Reached

    monkeypatch.setattr(Trainer, "_learn_stage", reached)
    monkeypatch.setattr(run_folder, "source_commit", lambda: None)  # starts git, which has nothing to do with it


@dataclasses.dataclass
class Outcome:
    code: int | None  # none: the files were read, and learning would begin
    errors: list[str]
    shown: str


def carry_out(monkeypatch: pytest.MonkeyPatch, command: Command) -> Outcome:
    """What `ctrlformer` does with a parsed command; raises if it takes too long or fails in any unclear way."""
    said, shown = io.StringIO(), io.StringIO()
    before, threads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.get_num_threads()
    code: int | None = None
    with monkeypatch.context() as patch, contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        patch.setattr(main, "_parse", lambda _: command)
        with limits(), contextlib.suppress(Reached):
            code = main.main(["in this process"])
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    outcome = Outcome(code, said.getvalue().splitlines(), shown.getvalue())
    check_lines(outcome)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MEMORY_BYTES, f"{grown / 1024:.0f} MB more than before"
    return outcome


def check_lines(outcome: Outcome) -> None:
    """Nothing but clear lines on stderr; with exit code 2 the last of them is the error."""
    errors = [line for line in outcome.errors if line.startswith("error: ")]
    assert all(line.startswith(("error: ", "warning: ")) for line in outcome.errors), outcome.errors
    assert all(len(line) < 2000 and line.isprintable() for line in outcome.errors), outcome.errors
    assert outcome.code in (None, 0, 2), outcome
    assert len(errors) == (outcome.code == 2), outcome.errors
    if errors:
        assert outcome.errors[-1] == errors[0]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Time and memory that a command may take; beyond them it fails here, not somewhere in the machine."""

    def too_long(*_: Any) -> NoReturn:
        raise TimeoutExpired(f"more than {PROCESSOR_SECONDS} s of the processor, or {CLOCK_SECONDS} s")

    handlers: dict[int, Any] = {n: signal.signal(n, too_long) for n in (signal.SIGPROF, signal.SIGALRM)}
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESS_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class TimeoutExpired(BaseException):
    """No `except Exception` on the way may swallow it."""
