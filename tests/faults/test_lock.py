"""One run, several processes: the second is told who holds it, and nobody is locked out by the dead."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import carry_out, make_run, without_learning
from small_runs import command, flags, spawn
from tally import HowMany, Tally

from ctrlformer.cli import commands as subcommands
from ctrlformer.storage.run_folder import RunFolder

HOLD = """
import sys, time
from pathlib import Path
from ctrlformer.storage.run_folder import RunFolder
with RunFolder.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("lock") / "stopped")


@contextmanager
def holder(run: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the run."""
    words = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


def held_by(process: int) -> str:
    return f"in use by process {process} on {socket.gethostname()}"


@pytest.mark.fault("lock")
def test_a_run_in_use_is_refused_and_read_all_the_same(
    stopped: RunFolder, tally: Tally, how_many: HowMany, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_learning(monkeypatch)
    run = Path(shutil.copytree(stopped.path, tmp_path / "run"))
    commands = {"resume": subcommands.Resume(run), "add": subcommands.Add(run, "toy/reach_sparse")}
    with holder(run) as child:
        for case in range(how_many(2, 8)):
            name = [*commands][case % 2]
            with tally.case(f"{name}, case {case}"):
                outcome = carry_out(monkeypatch, commands[name])
                assert outcome.code == 2
                assert held_by(child.pid) in outcome.errors[-1]
        with tally.case("report"):
            assert carry_out(monkeypatch, subcommands.Report((run,))).code == 0


@pytest.mark.fault("lock")
def test_a_lock_left_by_a_killed_process_is_taken_over(
    stopped: RunFolder, tally: Tally, how_many: HowMany, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_learning(monkeypatch)
    for case in range(how_many(1, 8)):
        run = Path(shutil.copytree(stopped.path, tmp_path / f"{case}"))
        with holder(run) as child:
            child.send_signal(signal.SIGKILL)
        with tally.case(f"stale, case {case}"):
            assert f"process {child.pid} " in (run / "lock").read_text()
            assert carry_out(monkeypatch, subcommands.Resume(run)).code is None  # it would learn
            assert f"process {os.getpid()} " in (run / "lock").read_text()


@pytest.mark.fault("lock")
def test_two_real_trainings_of_one_run(tally: Tally, how_many: HowMany, tmp_path: Path) -> None:
    for case in range(how_many(0, 2)):
        run = tmp_path / f"{case}"
        words = ("train", "toy/reach", "--run", run, *flags(), "--training.frames", "1000000")
        with spawn(*words) as first:
            try:
                assert first.stdout is not None
                while not (run / "checkpoints" / "last").exists():
                    assert first.poll() is None
                    assert first.stdout.readline()
                with tally.case(f"second resume, case {case}"):
                    second = subprocess.run(command("resume", run), capture_output=True, text=True, check=False)
                    assert second.returncode == 2
                    assert re.fullmatch(f"error: run .* is {held_by(first.pid)}: .*\n", second.stderr), second.stderr
            finally:
                first.kill()
        with tally.case(f"resume after the first was killed, case {case}"), spawn("resume", run) as third:
            assert third.stdout is not None
            assert third.stdout.readline()  # it goes on
            third.send_signal(signal.SIGTERM)
            assert third.wait() == 143
