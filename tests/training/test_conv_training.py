"""Presets with convolutions through the one training program: resuming to the bit, task after task."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import SETTINGS, SignalAt, assert_same, outcome, start

from ctrlformer.config import Config
from ctrlformer.config.presets import make_config
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch

SMALL = SETTINGS | {
    "env.image_size": 16,
    "encoder.stem_width": 8,
    "encoder.dim": 8,
    "encoder.feature_dim": 8,
    "agent.head_width": 16,
    "agent.frames_per_update": 1,
}


def small_conv(*tasks: str) -> Config:
    return make_config(tasks or ("toy/reach",), "compact", None, 1, SMALL)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("runs") / "unbroken", small_conv())


# While acting at random, after some updates, around the end of the first episode, at 25.
@pytest.mark.parametrize("step", [5, 13, 25, 31])
def test_resume_is_exact(step: int, unbroken: RunFolder, tmp_path: Path) -> None:
    assert "prediction_loss" in unbroken.read_metrics()[-1]
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", small_conv(), SignalAt(step=step))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(unbroken))


def test_two_tasks_resume_exactly(tmp_path: Path) -> None:
    pair = ("toy/reach", "toy/slide")  # two actions, then one
    whole = start(tmp_path / "whole", small_conv(*pair))
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", small_conv(*pair), SignalAt(step=20, stage="toy/slide"))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(whole))


def test_preset_places_resumes_exactly(tmp_path: Path) -> None:
    config = make_config(("toy/reach",), "places", None, 1, SMALL)
    whole = start(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config, SignalAt(step=13))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(whole))


@pytest.mark.parametrize("preset", ["compact", "places"])
def test_a_frozen_run_keeps_the_old_task_to_the_last_bit(preset: str, tmp_path: Path) -> None:
    settings = SMALL | {"transfer.protect": "freeze", "training.final_episodes": 2}
    run = start(tmp_path / "run", make_config(("toy/reach", "toy/slide"), preset, None, 1, settings))
    rows = [row for row in run.read_evals() if row["task"] == "toy/reach"]
    final, retest = (row["returns"] for row in rows if row["frames"] == rows[-1]["frames"])
    assert final == retest
