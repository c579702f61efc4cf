"""What the person watching sees."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ctrlformer.training import console
from ctrlformer.training.callbacks import StageInfo, StepInfo
from ctrlformer.training.console import ConsoleProgress

ROW = {
    "kind": "learn",
    "task": "toy/reach",
    "mean": 12.34,
    "std": 0.5,
    "returns": [12.0, 13.0],
    "frames": 2000,
    "minutes": 1.5,
}


def stage(frames: int = 0, budget: int = 10_000, task: str = "toy/reach") -> StageInfo:
    return StageInfo(0, (task,), budget, frames)


def step(frames: int, episode_return: float | None, budget: int = 10_000) -> StepInfo:
    return StepInfo("toy/reach", stage(frames, budget), frames, episode_return)


def plain() -> tuple[ConsoleProgress, io.StringIO]:
    text = io.StringIO()
    return ConsoleProgress(Console(file=text, force_terminal=False, width=200, highlight=False)), text


def test_a_probe_says_whose_policy_it_is_and_is_no_evaluation() -> None:
    shown, text = plain()
    shown.on_stage_start(stage())
    shown.on_evaluation(ROW | {"kind": "probe", "source": "random actions", "frames": 8}, 8)
    assert text.getvalue() == ("probe of random actions in toy/reach: 12.3 ± 0.5 over 2 episodes, 8 frames in all\n")
    assert "evaluation" not in shown.status()


def test_plain_lines_are_rare_and_evaluations_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000))  # a second passes at each look
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    shown, text = plain()
    shown.on_stage_start(stage())
    for number in range(1, 31):
        shown.on_step(step(20 * number, 7.0 if number == 10 else None))
    shown.on_evaluation(ROW, 2000)
    lines = text.getvalue().splitlines()
    assert 2 <= len(lines) <= 8  # not one for each of the 30 steps
    assert lines[-1] == "toy/reach: 12.3 ± 0.5 over 2 episodes at frame 2,000, minute 1.5"


def test_the_status_has_frames_speed_eta_return_and_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    shown, _ = plain()
    shown.on_stage_start(stage())
    shown.on_evaluation(ROW, 2000)
    for number in range(3):
        now = 2.0 * number
        shown.on_step(step(100 * number, 7.0))
    assert shown.status() == (
        "toy/reach  200/10,000 frames (2 %)  50.0 frames/s, ETA 0:03:16  return 7.0  evaluation 12.3"
    )


def test_a_retest_is_called_one_and_is_not_the_score_of_the_task_being_learnt() -> None:
    shown, text = plain()
    shown.on_stage_start(stage(task="toy/slide"))
    shown.on_evaluation({**ROW, "kind": "retest"}, 2000)
    assert text.getvalue().startswith("retest of toy/reach: 12.3 ± 0.5")
    assert "evaluation" not in shown.status()


def test_on_a_terminal_the_line_is_redrawn() -> None:
    text = io.StringIO()
    shown = ConsoleProgress(Console(file=text, force_terminal=True, width=100))
    shown.on_stage_start(stage(budget=100))
    shown.on_step(step(50, None, budget=100))
    shown.on_evaluation_episode(1, 3)
    shown.close()
    assert "evaluating 1/3" in text.getvalue()
    assert "\x1b[" in text.getvalue()
