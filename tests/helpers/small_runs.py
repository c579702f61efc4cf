"""Whole trainings of the toy task that take about a second, and what a test compares of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from ctrlformer.config import Config
from ctrlformer.config.presets import make_config
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch
from ctrlformer.training.callbacks import Callback, StageInfo, StepInfo

TASK = "toy/reach"
STEPS = 32  # of 2 frames each; an episode has 25
WALL_CLOCK = {"seconds", "minutes", "learner_busy"}

# Nothing divides anything, so that evaluations, checkpoints, log rows and episodes end at different steps.
SETTINGS: dict[str, Any] = {
    "training.frames": 2 * STEPS,
    "training.seed_steps": 9,
    "training.log_every_steps": 7,
    "training.eval_every_frames": 22,
    "training.eval_episodes": 1,
    "training.final_episodes": 1,
    "training.checkpoint_every_frames": 26,
    "training.tensorboard": False,
    "agent.batch_size": 4,
}


def small_config(*tasks: str, **changes: Any) -> Config:
    settings = SETTINGS | {name.replace("__", "."): value for name, value in changes.items()}
    return make_config(tasks or (TASK,), "tiny", None, 1, settings)


def flags() -> list[str]:
    """The same settings for the command line."""
    words = ["--preset", "tiny"]
    for name, value in SETTINGS.items():
        words += [f"--{name.replace('_', '-')}", "off" if value is False else str(value)]
    return words


def start(folder: Path, config: Config | None = None, *callbacks: Callback) -> RunFolder:
    return launch.start(config or small_config(), folder, callbacks=callbacks)


class SignalAt(Callback):
    """Sends this process a real signal when a step of a stage, or an evaluation, is reached."""

    def __init__(
        self,
        step: int | None = None,
        evaluation: int | None = None,
        number: int = signal.SIGINT,
        stage: str | None = None,
    ) -> None:
        self._step, self._evaluation, self._number = step, evaluation, number
        self._only = stage
        self.said: list[str] = []

    def on_step(self, step: StepInfo) -> None:
        if self._step is not None and self._frames(step.stage) == 2 * self._step:
            signal.raise_signal(self._number)

    def _frames(self, stage: StageInfo) -> int | None:
        return stage.frames if self._only in (None, " + ".join(stage.tasks)) else None

    def on_evaluation_episode(self, done: int, episodes: int) -> None:
        if done == 0 and self._evaluation is not None:
            self._evaluation -= 1
            if self._evaluation < 0:
                self._evaluation = None
                signal.raise_signal(self._number)

    def on_message(self, text: str) -> None:
        self.said.append(text)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "ctrlformer", *map(str, words)]


def spawn(*words: str | Path) -> subprocess.Popen[str]:
    """The real command in its own process."""
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def outcome(run: RunFolder) -> dict[str, Any]:
    """Everything that must be equal in two equal runs."""
    saved = checkpoint.load(run.checkpoints)
    trainer = {name: value for name, value in saved.state["trainer"].items() if name != "logs"}
    trainer["position"] = {k: v for k, v in trainer["position"].items() if k not in WALL_CLOCK}
    return {
        "tensors": {f"{part}/{name}": t for part, group in saved.tensors.items() for name, t in group.items()},
        "trainer": trainer,
        "replay": {
            str(file.relative_to(run.path)): file.read_bytes()
            for file in sorted((run.path / "replay").rglob("*"))
            if file.is_file()
        },
        "metrics": [_timeless(row) for row in run.read_metrics()],
        "evals": [_timeless(row) for row in run.read_evals()],
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["evals"] == expected["evals"]
    assert found["metrics"] == expected["metrics"]
    assert found["trainer"] == expected["trainer"]
    assert found["replay"] == expected["replay"]
    assert found["tensors"].keys() == expected["tensors"].keys()
    unequal = [name for name, tensor in expected["tensors"].items() if not torch.equal(found["tensors"][name], tensor)]
    assert not unequal


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in WALL_CLOCK}
