"""Sweeps in processes of this machine: the same results as in one, and stopping them loses nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sweeps import evals, learning, said_at_the_end, sweeping, until, words

from ctrlformer.cli.main import main
from ctrlformer.paper.plan import RUNS
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.sweep.processes import threads_each


def test_threads_are_shared_out() -> None:
    assert threads_each(1) >= 1
    assert threads_each(10_000) == 1


@pytest.mark.slow
def test_runs_beside_each_other_stopped_and_gone_on_with_are_the_same(tmp_path: Path) -> None:
    assert main(words(tmp_path / "one", "--jobs", "0")) == 0
    stopped = tmp_path / "stopped"
    with sweeping(stopped, "--jobs", "2") as process:
        until(lambda: len(learning(stopped)) == 2, process)
        process.send_signal(signal.SIGINT)
        assert "the same command resumes" in said_at_the_end(process, 130)
    for folder in (stopped / RUNS).iterdir():
        with RunFolder.open(folder).lock(patience=0):  # nobody trains it any more
            pass
    with sweeping(stopped, "--jobs", "1") as process:
        until(lambda: len(evals(stopped)) > 2, process)  # both have finished, and the next run has begun
        process.send_signal(signal.SIGTERM)
        assert "2 begun" in said_at_the_end(process, 143)
    with sweeping(stopped, "--jobs", "2") as process:
        said_at_the_end(process, 0)
    assert evals(stopped) == evals(tmp_path / "one")


@pytest.mark.slow
def test_a_process_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    with sweeping(tmp_path, "--jobs", "1", "--seeds", "1") as process:
        until(lambda: learning(tmp_path), process)
        (name,) = learning(tmp_path)
        holder = (tmp_path / RUNS / name / "lock").read_text()  # process 123 on host
        os.kill(int(holder.split()[1]), signal.SIGKILL)
        said = said_at_the_end(process, 0)
    assert f"resumed: {name}" in said
    assert "ended by SIGKILL; it resumes from its checkpoint" in said
