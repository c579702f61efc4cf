"""Mesa's libLLVM and triton in one process: unless triton is loaded first, its import is a segmentation fault.

Each case runs in a child, because it needs a process that has loaded neither."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import command

from ctrlformer.config.presets import make_config
from ctrlformer.storage.run_folder import RunFolder

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,  # not imported: this process may have drawn a picture already
    reason="triton is not installed: `make test` installs it where it can be",
)

TASK, FRAMES = "cartpole_swingup", 400
SETTINGS = {
    "env.action_repeat": 100,  # ten steps an episode
    "training.seed_steps": 2,
    "training.eval_every_frames": 400,
    "training.checkpoint_every_frames": 400,
    "training.precision": "fp32",  # no probe of bf16
    "training.tensorboard": False,
    "agent.batch_size": 2,
}


def run_in_child(words: list[str], folder: Path) -> None:
    child = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert child.returncode == 0, f"exit code {child.returncode}: {child.stderr[-2000:]}"


def test_a_picture_and_then_a_training(tmp_path: Path) -> None:
    code = f"""
import ctrlformer
ctrlformer.make_env({TASK!r}).reset()
ctrlformer.train({TASK!r}, preset="tiny", frames={FRAMES}, run="run", overrides={SETTINGS})
"""
    run_in_child([sys.executable, "-c", code], tmp_path)


def test_resume_and_then_add(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", make_config([TASK], "tiny", FRAMES, 1, SETTINGS))  # killed as it began
    run_in_child(command("resume", "run"), tmp_path)
    run_in_child(command("add", "run", "cartpole_balance"), tmp_path)
