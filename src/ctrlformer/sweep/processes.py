"""Runs in processes of this machine, a fixed number at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ctrlformer.storage.files import read_bounded
from ctrlformer.sweep.jobs import Job
from ctrlformer.sweep.schedule import Ended

COMMAND = [sys.executable, "-m", "ctrlformer.sweep.worker"]
POLL_SECONDS = 0.1
STOP_SECONDS = 300.0  # for a large checkpoint on a slow disk; then it is not waited for any more
STOPPED_BY_SIGNAL = (128 + signal.SIGINT, 128 + signal.SIGTERM)
LOG_BYTES = 1 << 30


class LocalProcesses:
    """An executor with room for `jobs` runs, which share this machine's cores."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._environment = os.environ | {
            name: os.environ.get(name, str(threads_each(jobs))) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        }
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}

    def has_room(self) -> bool:
        return len(self._running) < self._jobs

    def submit(self, job: Job) -> None:
        self._running[job.name] = job, start(job, self._environment)

    def wait(self, seconds: float) -> list[Ended]:
        deadline = time.monotonic() + seconds
        while True:
            ended = [
                how_it_ended(job, process) for job, process in self._running.values() if process.poll() is not None
            ]
            if ended or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        for one in ended:
            del self._running[one.name]
        return ended

    def stop(self) -> None:
        for _, process in self._running.values():
            process.terminate()
        for _, process in self._running.values():
            end(process)
        self._running.clear()


def threads_each(jobs: int) -> int:
    """Threads of a job, so that all of them together have one for each core."""
    return max(1, len(os.sched_getaffinity(0)) // jobs)


def start(job: Job, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """The job in a process of its own, which gets no signal from a Ctrl-C here: we ask it to stop, once."""
    Path(job.log).parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "ab") as log:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # one that died at once says so by its exit
        stdin.write(job.to_json().encode())
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process that was asked to stop has saved and gone."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def how_it_ended(job: Job, process: subprocess.Popen[bytes]) -> Ended:
    """By the exit code and the last line that was printed."""
    code = process.returncode
    if code == 0:
        return Ended(job.name, "finished")
    if code < 0:
        return Ended(job.name, "lost", f"its process was ended by {signal.Signals(-code).name}")
    if code in STOPPED_BY_SIGNAL:
        return Ended(job.name, "lost", "its process was asked to stop")
    return Ended(job.name, "failed", f"{_last_line(Path(job.log))} (see {job.log})")


def _last_line(log: Path) -> str:
    try:
        lines = read_bounded(log, LOG_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return "it left no log"
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix("error: ") if said else "it said nothing"
