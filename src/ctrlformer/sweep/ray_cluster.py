"""Runs as tasks of a Ray cluster: the only module that imports ray, and only when it is used.

A Ray task starts the same worker process as a sweep on one machine does, and waits for it. All that travels are
strings: the job there, and how it ended back. Run folders are on storage that every node sees, so a run whose node
died continues from its own checkpoint on another.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ctrlformer.errors import ConfigError, RunError
from ctrlformer.storage.files import read_bounded, write_atomic
from ctrlformer.sweep.jobs import Job
from ctrlformer.sweep.processes import POLL_SECONDS, STOP_SECONDS, end, how_it_ended, start
from ctrlformer.sweep.schedule import Ended, Outcome

LOCAL = "local"
MARK = "sweep.mark"  # a file in --out with a random word: a node that reads the same one shares the folder
MARK_BYTES = 100


class RayCluster:
    """An executor that gives every run to Ray at once; Ray starts them as cores and GPUs become free."""

    def __init__(self, address: str, out: Path, cpus: float, gpus: float) -> None:
        self._ray = _import_ray()
        self._out, self._mark = out.resolve(), secrets.token_hex(16)
        write_atomic(self._out / MARK, self._mark.encode())
        self._connect(address, cpus, gpus)
        # Retries are the schedule's business: it counts them, and tells about them.
        self._train = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(train)
        self._threads = max(1, int(cpus))
        self._running: dict[Any, str] = {}

    def has_room(self) -> bool:
        return True

    def submit(self, job: Job) -> None:
        reference = self._train.remote(job.to_json(), str(self._out), self._mark, self._threads)
        self._running[reference] = job.name

    def wait(self, seconds: float) -> list[Ended]:
        deadline = time.monotonic() + seconds
        while not (ready := self._ready()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)  # here and not inside Ray, which makes a KeyboardInterrupt of every signal
        return [Ended(self._running.pop(reference), *self._outcome(reference)) for reference in ready]

    def _ready(self) -> list[Any]:
        return list(self._ray.wait(list(self._running), num_returns=1, timeout=0)[0]) if self._running else []

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_SECONDS)
        self._running.clear()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()

    def _connect(self, address: str, cpus: float, gpus: float) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        on_sigterm = signal.getsignal(signal.SIGTERM)
        only_here = {"_node_ip_address": "127.0.0.1", "include_dashboard": False} if address == LOCAL else {}
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False, **only_here)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(f"no Ray cluster at {address!r}: {' '.join(str(error).split())[:200]}") from None
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end this process before the runs have saved
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if address == LOCAL and not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            self.close()
            raise ConfigError(f"this machine has no {cpus:g} cores and {gpus:g} GPUs for a run: ask for fewer")

    def _outcome(self, reference: Any) -> tuple[Outcome, str]:
        exceptions = self._ray.exceptions
        try:
            outcome, reason = self._ray.get(reference)
            return outcome, reason
        except exceptions.RayTaskError as error:
            return "failed", " ".join(str(error.cause).split())
        except exceptions.RayError as error:
            return "lost", f"its node or worker is gone ({type(error).__name__})"


def train(job_text: str, out: str, mark: str, threads: int) -> tuple[str, str]:
    """One run, on a node of the cluster: the outcome and its reason."""
    _check_shared(Path(out), mark)
    job = Job.from_json(job_text)
    limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    process = start(job, os.environ | limits)
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)  # not process.wait(): Ray's wish to cancel is seen between two sleeps only
    except BaseException:
        process.terminate()
        end(process)
        raise
    ended = how_it_ended(job, process)
    return ended.outcome, ended.reason


def _check_shared(out: Path, mark: str) -> None:
    try:
        found = read_bounded(out / MARK, MARK_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        found = ""
    if found != mark:
        raise RunError(f"node {socket.gethostname()} does not see {out}: put --out on storage that all nodes share")


def _import_ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("--ray needs ray: pip install 'ctrlformer[ray]'") from None
    module: ModuleType = ray
    return module
