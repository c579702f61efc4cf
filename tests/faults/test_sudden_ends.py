"""Trainings in processes of their own that are killed, or asked to stop, at random moments."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from broken_runs import broken_config, ended, forked, frozen, go_on, start, without_waste
from small_runs import assert_same, outcome
from tally import HowMany, Tally

from ctrlformer.cli.main import main
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import EVALS, LOCK, METRICS, RunFolder

pytestmark = pytest.mark.usefixtures("quick_trainings")

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
PROMPTLY = 10.0  # seconds from a signal to the end


class Trainings:
    """Children that train, each caught at a random moment while it is still at it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._random, self._count = folder, random.Random(1), 0
        started = time.monotonic()
        assert ended(self._begin_with_start()) == 0
        self._seconds = time.monotonic() - started  # what a whole one takes

    @property
    def run(self) -> Path:
        """The folder of the newest."""
        return self._folder / f"{self._count}"

    @property
    def printed(self) -> str:
        return self.run.with_suffix(".txt").read_text()

    def caught(self, command: bool) -> int:
        """The process id of a new training, made by the real command or by what it calls, which now stands still."""
        while True:
            child = self._begin_with_command() if command else self._begin_with_start()
            time.sleep(self._random.uniform(0.0, self._seconds))
            if frozen(child):
                return child
            assert ended(child) == 0, self.printed  # it was quicker than expected: try again

    def _begin_with_start(self) -> int:
        self._count += 1
        return forked(lambda: start(self.run), self.run.with_suffix(".txt"))

    def _begin_with_command(self) -> int:
        """`ctrlformer resume` of a run that has its config and nothing else; it has begun to catch signals."""
        self._count += 1
        RunFolder.create(self.run, broken_config())
        child = forked(lambda: main(["resume", str(self.run)]), self.run.with_suffix(".txt"))
        while not (self.run / LOCK).exists():
            time.sleep(0.001)
        return child


@pytest.fixture(scope="module")
def trainings(expected: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """`expected` comes first, so that children find everything imported and compiled."""
    with pytest.MonkeyPatch.context() as patch:
        without_waste(patch)
        return Trainings(tmp_path_factory.mktemp("trainings"))


@pytest.mark.fault("kill")
def test_resume_after_kill_9_is_exact(
    tally: Tally, how_many: HowMany, trainings: Trainings, expected: dict[str, Any]
) -> None:
    for number in range(how_many(3, 100)):
        with tally.case(f"kill {number}"):
            child = trainings.caught(command=False)
            os.kill(child, signal.SIGKILL)
            assert ended(child) == -signal.SIGKILL
            assert_same(outcome(go_on(trainings.run)), expected)


@pytest.mark.fault("signal")
def test_a_signal_saves_and_resume_is_exact(
    tally: Tally, how_many: HowMany, trainings: Trainings, expected: dict[str, Any]
) -> None:
    slowest = 0.0
    for number in range(how_many(2, 50)):
        sent = list(CODES)[number % 2]
        with tally.case(f"{sent.name} {number}"):
            child = trainings.caught(command=True)
            at = time.monotonic()
            strike(child, sent)
            code = ended(child)
            slowest = max(slowest, time.monotonic() - at)
            assert code == CODES[sent], trainings.printed
            assert time.monotonic() - at <= PROMPTLY
            assert "Traceback" not in trainings.printed
            assert saved_all(trainings.run)
            assert_same(outcome(go_on(trainings.run)), expected)
    tally.figures["slowest end after a signal, s"] = round(slowest, 2)


@pytest.mark.fault("second_signal")
def test_a_second_signal_ends_at_once_and_resume_is_exact(
    tally: Tally, how_many: HowMany, trainings: Trainings, expected: dict[str, Any]
) -> None:
    pauses, slowest = random.Random(2), 0.0
    for number in range(how_many(2, 50)):
        first, second = random.Random(number).choices(list(CODES), k=2)
        with tally.case(f"{first.name}, then {second.name} {number}"):
            child = trainings.caught(command=True)
            strike(child, first)
            time.sleep(pauses.uniform(0.0, 0.1))
            at = time.monotonic()
            os.kill(child, second)
            code = ended(child)
            slowest = max(slowest, time.monotonic() - at)
            assert code in (CODES[first], CODES[second]), trainings.printed
            assert "Traceback" not in trainings.printed
            assert_same(outcome(go_on(trainings.run)), expected)
    tally.figures["slowest end after a second signal, s"] = round(slowest, 2)


def strike(child: int, sent: signal.Signals) -> None:
    """Send a signal to a child that stands still, which it finds when it goes on."""
    os.kill(child, sent)
    os.kill(child, signal.SIGCONT)


def saved_all(folder: Path) -> bool:
    """Whether the newest checkpoint is of the very end: no row was logged after it."""
    logs = checkpoint.load(folder / "checkpoints").state["trainer"]["logs"]
    return all((folder / name).stat().st_size == logs[name] for name in (METRICS, EVALS))
