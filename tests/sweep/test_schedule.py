"""The schedule with an executor that trains nothing: order, failures, lost runs, signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctrlformer.paper.experiments import EXPERIMENTS, SCALES
from ctrlformer.paper.plan import Choice, make_plan
from ctrlformer.sweep.jobs import Job
from ctrlformer.sweep.schedule import Ended, Status, Sweep

PLAN = make_plan(Choice(EXPERIMENTS["sequence_of_four"], SCALES["smoke"]))
CHAIN = [name for name, run in PLAN.runs.items() if run.parent or name == "smoke-ctrlformer-toy_slide-60-seed1"]


class Pretending:
    """Ends every job at once, the way `ending` says."""

    def __init__(self, room: int, ending: Callable[[str], Ended]) -> None:
        self._room, self._ending = room, ending
        self._running: list[str] = []
        self.submitted: list[str] = []
        self.largest = 0
        self.stopped = False

    def has_room(self) -> bool:
        return len(self._running) < self._room

    def submit(self, job: Job) -> None:
        self.submitted.append(job.name)
        self._running.append(job.name)
        self.largest = max(self.largest, len(self._running))

    def wait(self, seconds: float) -> list[Ended]:
        ended, self._running = [self._ending(name) for name in self._running], []
        return ended

    def stop(self) -> None:
        self.stopped = True


class Watching:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def changed(self, name: str, status: Status) -> None:
        self.seen.append((name, status.state))

    def refresh(self) -> None:
        """Nothing to draw."""


def finished(name: str) -> Ended:
    return Ended(name, "finished")


def sweep_with(executor: Pretending, finished_before: int = 0, retries: int = 2) -> Sweep:
    states = {name: "finished" if number < finished_before else "new" for number, name in enumerate(PLAN.runs)}
    return Sweep(PLAN.runs, states, Path("out"), executor, Watching(), retries)  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [1, 2, 100])
def test_every_run_once_and_after_the_one_it_goes_on_from(room: int) -> None:
    executor = Pretending(room, finished)
    sweep = sweep_with(executor)
    sweep.run()
    assert sorted(executor.submitted) == sorted(PLAN.runs)
    assert executor.largest <= room
    for name, run in PLAN.runs.items():
        assert run.parent is None or executor.submitted.index(run.parent) < executor.submitted.index(name)
    assert sweep.failed == []


def test_finished_runs_are_skipped() -> None:
    executor = Pretending(2, finished)
    sweep_with(executor, finished_before=3).run()
    assert executor.submitted == list(PLAN.runs)[3:]


def test_a_failed_run_stops_only_those_that_go_on_from_it() -> None:
    second = CHAIN[1]
    executor = Pretending(2, lambda name: Ended(name, "failed", "no more ideas") if name == second else finished(name))
    sweep = sweep_with(executor)
    sweep.run()
    assert sweep.failed == CHAIN[1:]
    assert [sweep.statuses[name].state for name in CHAIN] == ["finished", "failed", "blocked", "blocked"]
    assert sweep.statuses[second].reason == "no more ideas"
    assert len(executor.submitted) == len(PLAN.runs) - 2


def test_a_lost_run_is_gone_on_with_as_often_as_allowed() -> None:
    first = CHAIN[0]
    lost: list[str] = []

    def ending(name: str) -> Ended:
        if name == first and len(lost) < 2:
            lost.append(name)
            return Ended(name, "lost", "its node is gone")
        return finished(name)

    executor = Pretending(3, ending)
    sweep = sweep_with(executor)
    sweep.run()
    assert executor.submitted.count(first) == 3
    assert sweep.failed == []


def test_a_run_that_is_lost_again_and_again_has_failed() -> None:
    executor = Pretending(3, lambda name: Ended(name, "lost", "out of memory"))
    sweep = sweep_with(executor, retries=1)
    sweep.run()
    assert executor.submitted.count(CHAIN[0]) == 2
    assert len(sweep.failed) == len(PLAN.runs)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_signal_stops_the_executor_and_goes_up(error: type[BaseException]) -> None:
    def ending(name: str) -> Ended:
        raise error

    executor = Pretending(1, ending)
    with pytest.raises(error):
        sweep_with(executor).run()
    assert executor.stopped
