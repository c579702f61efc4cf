"""Which run is trained when: each after the one it continues; a failure stops only what depends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from ctrlformer.paper.plan import PlannedRun, RunState
from ctrlformer.sweep.jobs import Job

WAIT_SECONDS = 1.0  # between two looks at the executor

Outcome = Literal["finished", "failed", "lost"]
"""failed: it would fail again; lost: its process or machine is gone, and the next attempt resumes from its checkpoint.
"""


class Ended(NamedTuple):
    """A job that an executor is done with."""

    name: str
    outcome: Outcome
    reason: str = ""


class Executor(Protocol):
    """Trains runs somewhere."""

    def has_room(self) -> bool:
        """Whether another job can be given to it now."""

    def submit(self, job: Job) -> None:
        """Begin a job, or queue it."""

    def wait(self, seconds: float) -> list[Ended]:
        """The jobs that have ended since the last call, after waiting so long for one at most."""

    def stop(self) -> None:
        """Have every job save and end; return when they have."""


@dataclass
class Status:
    """How a run is doing."""

    state: Literal["waiting", "running", "finished", "failed", "blocked"]
    """blocked: the run that it continues has failed."""
    reason: str = ""
    attempts: int = 0


class View(Protocol):
    """Shows a sweep to whoever watches."""

    def changed(self, name: str, status: Status) -> None:
        """A run's state has changed."""

    def refresh(self) -> None:
        """Called about once a second."""


class Sweep:
    """Trains runs to their end; `statuses` tells about each."""

    def __init__(
        self,
        runs: Mapping[str, PlannedRun],
        states: Mapping[str, RunState],
        out: Path,
        executor: Executor,
        view: View,
        retries: int,
    ) -> None:
        self._runs, self._out, self._executor, self._view, self._retries = runs, out, executor, view, retries
        self.statuses = {name: Status("finished" if states[name] == "finished" else "waiting") for name in runs}

    def run(self) -> None:
        """Return when nothing can be done any more; a signal stops every training, which saves, and is raised again."""
        try:
            while self._in("waiting", "running"):
                self._submit()
                for ended in self._executor.wait(WAIT_SECONDS):
                    self._note(ended)
                self._view.refresh()
        except BaseException:  # KeyboardInterrupt and SystemExit, too
            self._executor.stop()
            raise

    @property
    def failed(self) -> Sequence[str]:
        """Runs that did not come to their end."""
        return self._in("failed", "blocked")

    def _in(self, *states: str) -> list[str]:
        return [name for name, status in self.statuses.items() if status.state in states]

    def _submit(self) -> None:
        for name in self._in("waiting"):
            if not self._executor.has_room():
                return
            parent = self._runs[name].parent
            if parent is None or self.statuses[parent].state == "finished":
                self._set(name, "running", attempts=self.statuses[name].attempts + 1)
                self._executor.submit(Job.of(self._runs[name], self._out))

    def _note(self, ended: Ended) -> None:
        status = self.statuses[ended.name]
        if ended.outcome == "lost" and status.attempts <= self._retries:
            self._set(ended.name, "waiting", f"{ended.reason}; it resumes from its checkpoint", status.attempts)
        elif ended.outcome == "finished":
            self._set(ended.name, "finished", "", status.attempts)
        else:
            self._set(ended.name, "failed", ended.reason, status.attempts)
            self._block(ended.name)

    def _block(self, failed: str) -> None:
        """Block the runs that would continue the failed one, and those that would continue these."""
        for name in self._in("waiting"):
            if self._runs[name].parent == failed:
                self._set(name, "blocked", f"it continues {failed}, which failed")
                self._block(name)

    def _set(
        self,
        name: str,
        state: Literal["waiting", "running", "finished", "failed", "blocked"],
        reason: str = "",
        attempts: int = 0,
    ) -> None:
        self.statuses[name] = Status(state, reason, attempts)
        self._view.changed(name, self.statuses[name])
