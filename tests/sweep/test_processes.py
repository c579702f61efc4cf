"""Sweeps in processes of this machine: the same results as in one, and stopping them loses nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sweeps import SECONDS, evals, learning, spawn, until, words

from ctrlformer.cli import main
from ctrlformer.runs import RunFolder
from ctrlformer.sweep.processes import threads_each


def test_threads_are_shared_out() -> None:
    assert threads_each(1) >= 1
    assert threads_each(10_000) == 1


@pytest.mark.slow
def test_runs_beside_each_other_stopped_and_gone_on_with_are_the_same(tmp_path: Path) -> None:
    assert main(words(tmp_path / "one", "--jobs", "0")) == 0
    stopped = tmp_path / "stopped"
    for number in (signal.SIGINT, signal.SIGTERM):
        process = spawn(stopped, "--jobs", "2")
        before = set(learning(stopped)) if stopped.exists() else set()
        until(lambda before=before: set(learning(stopped)) - before, process)  # type: ignore[misc]
        process.send_signal(number)
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + number, said
        assert "the same command goes on" in said
        for folder in (stopped / "runs").iterdir():
            with RunFolder.open(folder).lock(patience=0):  # nobody trains it any more
                pass
    process = spawn(stopped, "--jobs", "2")
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert evals(stopped) == evals(tmp_path / "one")


@pytest.mark.slow
def test_a_process_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    process = spawn(tmp_path, "--jobs", "1", "--seeds", "1")
    until(lambda: learning(tmp_path), process)
    (name,) = learning(tmp_path)
    holder = (tmp_path / "runs" / name / "lock").read_text()
    os.kill(int(holder.split()[1]), signal.SIGKILL)
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert f"goes on: {name}" in said
    assert "ended by SIGKILL; it goes on from its checkpoint" in said
