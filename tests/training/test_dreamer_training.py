"""Dreamer through the one training program: resuming to the bit, task after task, together, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_dreamers import SMALL, small_dreamer
from small_runs import SignalAt, assert_same, outcome, start

from ctrlformer import api
from ctrlformer.cli.main import main
from ctrlformer.config import TransferConfig
from ctrlformer.envs import make_env
from ctrlformer.errors import ConfigError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch

PAIR = ("toy/reach", "toy/slide")  # two actions, then one


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("runs") / "unbroken", small_dreamer())


def test_updates_come_every_second_step_and_are_logged(unbroken: RunFolder) -> None:
    rows = unbroken.read_metrics()
    assert [row["steps"] for row in rows] == [7, 14, 21, 28, 32]
    assert [row["updates"] for row in rows] == [0, 2, 6, 9, 11]  # at 10, 12 and so on; the last step has none after it
    assert all("reconstruction_loss" in row for row in rows[1:])


# While acting at random; before, at and after an update; around the end of the first episode, at 25.
@pytest.mark.parametrize("step", [5, 10, 13, 24, 25, 31])
def test_resume_in_the_middle_of_an_episode_is_exact(step: int, unbroken: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", small_dreamer(), SignalAt(step=step))
    saved = checkpoint.load(tmp_path / "run" / "checkpoints").tensors["episodes"]
    assert ("0/memory" in saved) == (step != 25)  # the latent state of the open episode, if one is open
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(unbroken))


def test_without_its_memory_the_policy_would_act_otherwise(
    unbroken: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above would notice a memory that is lost."""
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", small_dreamer(), SignalAt(step=20))
    read = checkpoint.candidates

    def forgetful(*words: Any) -> Any:
        for saved in read(*words):
            saved.tensors["episodes"].pop("0/memory")
            yield saved

    with monkeypatch.context() as lost:
        lost.setattr(checkpoint, "candidates", forgetful)
        run = launch.resume(tmp_path / "run")
    assert outcome(run)["replay"] != outcome(unbroken)["replay"]


@pytest.mark.parametrize("together", [False, True])
def test_two_tasks_resume_exactly_and_are_retested(together: bool, tmp_path: Path) -> None:
    config = replace(small_dreamer(*PAIR, training__frames=36), together=together)
    whole = start(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "broken", config, SignalAt(step=15, stage=None if together else "toy/slide"))
    assert_same(outcome(launch.resume(tmp_path / "broken")), outcome(whole))
    retests = [row["task"] for row in whole.read_evals() if row["kind"] == "retest"]
    assert retests == ([] if together else ["toy/reach"])
    drifts = [row["drift/toy/reach"] for row in whole.read_metrics() if row["stage"] == 1]
    assert together or min(drifts[-1:]) > 0


def test_a_task_is_added_and_a_frozen_world_keeps_the_old_one(unbroken: RunFolder, tmp_path: Path) -> None:
    frozen = TransferConfig(protect="freeze")
    run = launch.add(unbroken.path, "toy/slide", frames=30, transfer=frozen, into=tmp_path / "frozen")
    final, retest = (
        row["returns"] for row in run.read_evals() if row["task"] == "toy/reach" and row["kind"] != "learn"
    )
    assert final == retest
    world = [checkpoint.load(folder.checkpoints).tensors["world"] for folder in (unbroken, run)]
    assert all(world[0][name].equal(world[1][name]) for name in world[0])
    assert max(row["drift/toy/reach"] for row in run.read_metrics() if row["stage"] == 1) < 1e-5


def test_what_it_cannot_do_is_refused_in_one_line(
    unbroken: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="rehearse"):
        small_dreamer(transfer__protect="rehearse")
    with pytest.raises(ConfigError, match="fp32"):
        small_dreamer(training__precision="bf16")
    assert main(["add", str(unbroken.path), "toy/slide", "--transfer.protect", "rehearse"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "choose none or freeze" in error


def test_the_commands_train_and_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "toy/slide", "--preset", "dreamer", "--frames", "30", "--run", str(tmp_path / "run")]
    for name, value in {**SMALL, "training.seed_steps": 9, "training.eval_episodes": 1}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    assert main([*words, "--training.final-episodes", "1"]) == 0
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert "over 2 episodes" in capsys.readouterr().out


def test_a_loaded_agent_remembers_its_episode_until_the_next_begins(unbroken: RunFolder) -> None:
    agent = api.load(unbroken.path)
    pixels, _ = make_env("toy/reach").reset(seed=0)
    first, second = agent.act(pixels), agent.act(pixels)
    assert not np.array_equal(first, second)
    agent.begin_episode()
    assert np.array_equal(agent.act(pixels), first)


LEARNING: dict[str, Any] = {
    "agent.batch_size": 32,
    "agent.update_every": 1,
    "agent.discount": 0.9,
    "dreamer.frame_size": 32,
    "dreamer.conv_width": 8,
    "dreamer.deterministic": 64,
    "dreamer.stochastic": 16,
    "dreamer.hidden": 64,
    "dreamer.head_width": 64,
    "dreamer.sequence_length": 8,
    "dreamer.horizon": 8,
    "dreamer.kl_scale": 0.1,
    "dreamer.free_nats": 0.0,
    "dreamer.model_learning_rate": 2e-3,
    "dreamer.actor_learning_rate": 1e-3,
    "dreamer.value_learning_rate": 1e-3,
    "dreamer.initial_deviation": 1.0,
    "training.seed_steps": 250,
    "training.eval_every_frames": 100_000,  # at the start and at the end only, the same episodes
    "training.eval_episodes": 20,
    "training.final_episodes": 20,
    "training.replay_capacity": 5000,
    "training.tensorboard": False,
}


@pytest.mark.slow  # 2250 updates each
@pytest.mark.parametrize("seed", [1, 2])
def test_it_learns_a_task_from_pixels(tmp_path: Path, seed: int) -> None:
    run = api.train(
        "toy/slide", preset="dreamer", frames=5000, seed=seed, run=tmp_path / "run", overrides=LEARNING, quiet=True
    )
    untrained, trained = (row["mean"] for row in run.read_evals())
    assert trained > 1.4 * untrained, (untrained, trained)
    print(f"seed {seed}: {untrained:.1f} to {trained:.1f}")
