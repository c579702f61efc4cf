"""Signals: the first asks, the second does not wait, and an update that lasts for ever is not waited for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ctrlformer.training.signals import StopRequest


def test_the_first_signal_only_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        with pytest.raises(SystemExit) as left:
            stop.leave()
        assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_leaves_at_once() -> None:
    with StopRequest():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def ended(body: str, exit_within: float) -> subprocess.CompletedProcess[str]:
    """A process that catches signals for at most `exit_within` seconds and then does `body`."""
    code = f"""
import signal, time
from ctrlformer.training.signals import StopRequest
with StopRequest({exit_within}) as stop:
    {body}
print("went on")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_an_update_that_does_not_end_is_not_waited_for() -> None:
    done = ended("signal.raise_signal(signal.SIGTERM); time.sleep(600)", exit_within=0.1)
    assert done.returncode == 143
    assert "last checkpoint" in done.stderr


def test_a_second_signal_to_the_command_ends_the_process() -> None:
    done = ended("signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)", exit_within=600)
    assert done.returncode == 130
    assert "went on" not in done.stdout


def test_saving_is_waited_for() -> None:
    done = ended("signal.raise_signal(signal.SIGTERM); stop.saving(); time.sleep(0.3)", exit_within=0.1)
    assert done.returncode == 0
    assert "went on" in done.stdout
