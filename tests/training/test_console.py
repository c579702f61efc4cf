"""What the person watching sees."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ctrlformer.training import console
from ctrlformer.training.console import OnConsole

ROW = {
    "kind": "learn",
    "task": "toy/reach",
    "mean": 12.34,
    "std": 0.5,
    "returns": [12.0, 13.0],
    "frames": 2000,
    "minutes": 1.5,
}


def plain() -> tuple[OnConsole, io.StringIO]:
    text = io.StringIO()
    return OnConsole(Console(file=text, force_terminal=False, width=200, highlight=False)), text


def test_plain_lines_are_rare_and_evaluations_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000))  # a second passes at each look
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    shown, text = plain()
    shown.begin_stage("toy/reach", 0, 10_000)
    for step in range(1, 31):
        shown.step(20 * step, 7.0 if step == 10 else None)
    shown.evaluated(ROW)
    lines = text.getvalue().splitlines()
    assert 2 <= len(lines) <= 8  # not one for each of the 30 steps
    assert lines[-1] == "toy/reach: 12.3 ± 0.5 over 2 episodes at frame 2,000, minute 1.5"


def test_the_status_has_frames_speed_eta_return_and_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    shown, _ = plain()
    shown.begin_stage("toy/reach", 0, 10_000)
    shown.evaluated(ROW)
    for step in range(3):
        now = 2.0 * step
        shown.step(100 * step, 7.0)
    assert shown.status() == (
        "toy/reach  200/10,000 frames (2 %)  50.0 frames/s, ETA 0:03:16  return 7.0  evaluation 12.3"
    )


def test_a_retest_is_called_one_and_is_not_the_score_of_the_task_being_learnt() -> None:
    shown, text = plain()
    shown.begin_stage("toy/slide", 0, 10_000)
    shown.evaluated({**ROW, "kind": "retest"})
    assert text.getvalue().startswith("retest of toy/reach: 12.3 ± 0.5")
    assert "evaluation" not in shown.status()


def test_on_a_terminal_the_line_is_redrawn() -> None:
    text = io.StringIO()
    shown = OnConsole(Console(file=text, force_terminal=True, width=100))
    shown.begin_stage("toy/reach", 0, 100)
    shown.step(50, None)
    shown.evaluating(1, 3)
    shown.close()
    assert "evaluating 1/3" in text.getvalue()
    assert "\x1b[" in text.getvalue()
