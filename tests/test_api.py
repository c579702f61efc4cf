"""The public Python functions; their docstrings' examples are tests as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_runs
from small_runs import start

import ctrlformer
from ctrlformer.config.presets import make_config
from ctrlformer.errors import ConfigError, TaskError
from ctrlformer.storage.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("runs") / "run")


def test_every_public_name_is_there() -> None:
    for name in ctrlformer.__all__:
        assert getattr(ctrlformer, name) is not None
    assert set(dir(ctrlformer)) >= set(ctrlformer.__all__)
    with pytest.raises(AttributeError, match="tarin"):
        ctrlformer.tarin  # noqa: B018


def test_a_loaded_agent_plays_as_the_last_evaluation_did(run: RunFolder) -> None:
    (score,) = ctrlformer.evaluate(run.path, episodes=1)
    assert score.returns == run.read_evals()[-1]["returns"]


def test_a_loaded_agent_acts(run: RunFolder) -> None:
    agent = ctrlformer.load(str(run.path))
    assert agent.tasks == ["toy/reach"]
    pixels, _ = ctrlformer.make_env("toy/reach").reset(seed=1)
    action = agent.act(pixels, task="toy/reach")
    assert action.shape == (2,)
    assert action.dtype == np.float32
    assert np.array_equal(action, agent.act(pixels))
    with pytest.raises(TaskError, match="toy/slide"):
        agent.act(pixels, task="toy/slide")


def test_evaluating_one_task_that_was_not_learnt_is_refused(run: RunFolder) -> None:
    with pytest.raises(TaskError, match="cartpole_swingup"):
        ctrlformer.evaluate(run.path, task="cartpole-swingup")


def test_train_and_resume_through_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ctrlformer.train(
        "toy/reach",
        preset="tiny",
        frames=10,
        run=tmp_path / "run",
        overrides=small_runs.SETTINGS | {"training.frames": 10},
    )
    assert "at frame 10" in capsys.readouterr().out
    ctrlformer.resume(run.path, quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("agent.discuont", 0.9, "agent.discuont"),
        ("discount", 0.9, "settings look like"),
        ("agent.discount", "high", "agent.discount"),
        ("agent.discount", 2.0, "agent.discount"),
        ("seed.x", 2.0, "seed.x"),
    ],
)
def test_an_override_that_cannot_be_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(["toy/reach"], "tiny", None, 1, {name: value})
