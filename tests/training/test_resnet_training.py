"""Trainings on a frozen ResNet: frames are read once, features stored, and a resume changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_resnets import FEATURES, resnet_settings, write_weights
from small_runs import SignalAt, assert_same, outcome, small_config, start

from ctrlformer import api
from ctrlformer.agents import SacAgent
from ctrlformer.cli.main import main
from ctrlformer.config import Config
from ctrlformer.encoders.frames import ResNetReader
from ctrlformer.envs import make_env
from ctrlformer.errors import ConfigError
from ctrlformer.replay import Replay, rehearsal
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch
from ctrlformer.training.collect import Collector, evaluate

TASK = "toy/reach"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "resnet.safetensors")


def config_for(weights: Path, *tasks: str, **changes: Any) -> Config:
    fewer = {"training__eval_every_frames": 50}  # evaluations are most of the frames
    return small_config(*tasks, **{**resnet_settings(weights), **fewer, **changes})


@pytest.fixture(scope="module")
def unbroken(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("runs") / "unbroken", config_for(weights))


# What a run does


def test_it_learns_and_scores(unbroken: RunFolder) -> None:
    rows = unbroken.read_metrics()
    assert rows[-1]["updates"] == 23
    assert rows[-1]["feature_std"] > 0.01
    assert len({row["mean"] for row in unbroken.read_evals()}) > 1


def test_a_checkpoint_has_the_trained_layer_and_not_the_network(unbroken: RunFolder) -> None:
    saved = checkpoint.load(unbroken.checkpoints)
    layer = {"head.weight", "head.bias", "norm.weight", "norm.bias"}
    assert set(saved.tensors["encoder"]) == set(saved.tensors["target_encoder"]) == layer
    shapes = [tuple(tensor.shape) for group in saved.tensors.values() for tensor in group.values()]
    assert (16, 3 * FEATURES) in shapes
    assert not [shape for shape in shapes if len(shape) == 4]  # no convolution


def test_the_config_notes_the_weights_and_their_checksum(unbroken: RunFolder, weights: Path) -> None:
    encoder = unbroken.config.encoder
    assert encoder.weights == str(weights.resolve())
    assert encoder.weights_sha256 is not None
    assert len(encoder.weights_sha256) == 64


def agent_for(weights: Path) -> SacAgent:
    agent = SacAgent(config_for(weights), seed=1)
    agent.add_task(TASK, 2)
    return agent


def counted(agent: SacAgent) -> list[int]:
    """Grows with every frame that the network encodes."""
    assert isinstance(agent.reader, ResNetReader)
    seen: list[int] = []
    agent.reader._resnet.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return seen


def test_stored_features_are_those_of_the_frames_and_each_frame_is_encoded_once(weights: Path) -> None:
    agent, env = agent_for(weights), make_env(TASK)
    seen = counted(agent)
    replay = Replay(None, 100, 2, features=agent.reader.features)
    played = Collector(agent, env, replay, (1, 0, 0), read=agent.reader.read)
    observations, frames, random = [], set(), np.random.default_rng(0)
    for number in range(30):
        played.begin()
        assert played._pixels is not None
        observations.append(agent.reader.stack(played._pixels))
        frames.add(played._pixels[..., -3:].tobytes())
        played.step(played.choose(random if number % 2 else None))
    assert played._pixels is not None
    frames.add(played._pixels[..., -3:].tobytes())
    assert len(frames) > 15
    assert len(frames) <= sum(seen) <= len(frames) + 1  # the last frame of the episode that ended was not looked at
    stored = replay.observations(np.random.default_rng(0), 30)
    assert {tuple(map(tuple, stack.tolist())) for stack in stored} == {
        tuple(map(tuple, stack.tolist())) for stack in observations
    }


def test_an_evaluation_encodes_a_frame_per_step(weights: Path) -> None:
    agent, env = agent_for(weights), make_env(TASK)
    seen = counted(agent)
    evaluate(agent, env, TASK, 2, seed=3)
    assert 0 < len(seen) <= 2 * 26  # the first frame and one per step, of two episodes; fewer where nothing moved
    assert set(seen) == {1}


def test_updates_leave_the_network_alone(weights: Path) -> None:
    agent = agent_for(weights)
    assert isinstance(agent.reader, ResNetReader)
    before = {name: tensor.clone() for name, tensor in agent.reader._resnet.state_dict().items()}
    layer = agent.encoder.state_dict()["head.weight"].clone()
    replay, rng = Replay(None, 50, 2, features=FEATURES), np.random.default_rng(0)
    replay.begin(rng.random(FEATURES, np.float32))
    for _ in range(20):
        replay.add(rng.uniform(-1, 1, 2), 1.0, False, rng.random(FEATURES, np.float32))
    for _ in range(4):
        agent.update(TASK, replay.sample(rng, 8, shift=0, views=1, next_views=1))
    assert all(torch.equal(before[name], tensor) for name, tensor in agent.reader._resnet.state_dict().items())
    assert not torch.equal(agent.encoder.state_dict()["head.weight"], layer)
    owned = {id(p) for optimiser in agent._optimisers for p in optimiser.parameters}
    assert not owned & {id(p) for p in agent.reader._resnet.parameters()}


# Stopping and going on


@pytest.mark.parametrize("step", [5, 17, 25])
def test_resume_is_exact(step: int, unbroken: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", unbroken.config, SignalAt(step=step))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(unbroken))


def test_resume_is_exact_with_several_threads_and_features_on_the_device(weights: Path, tmp_path: Path) -> None:
    changes = {"training__threads": 2, "training__replay_on": "device"}
    config, threads = config_for(weights, **changes), torch.get_num_threads()
    try:
        whole = start(tmp_path / "whole", config)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "broken", config, SignalAt(step=17))
        assert_same(outcome(launch.resume(tmp_path / "broken")), outcome(whole))
    finally:
        torch.set_num_threads(threads)


def test_a_task_is_taken_up_and_the_old_one_kept(weights: Path, tmp_path: Path) -> None:
    changes = {"training__frames": 30, "transfer__protect": "rehearse"}
    config = config_for(weights, TASK, "toy/slide", **changes)
    whole = start(tmp_path / "whole", config)
    assert [row["kind"] for row in whole.read_evals()][-1] == "retest"
    last = whole.read_metrics()[-1]
    assert {"rehearsal_loss", "drift/toy/reach"} <= set(last)
    checksum = checkpoint.load(whole.checkpoints).state["trainer"]["kept"][TASK]
    agent = api.load(whole.path).learner
    assert rehearsal.load(whole.rehearsal_buffer(TASK), TASK, checksum, agent.outputs).observations.shape == (
        15,
        3,
        FEATURES,
    )
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "broken", config, SignalAt(step=9, stage="toy/slide"))
    assert_same(outcome(launch.resume(tmp_path / "broken")), outcome(whole))


def test_adding_a_task_and_loading_read_the_weights_again(unbroken: RunFolder, tmp_path: Path) -> None:
    run = launch.add(unbroken.path, "toy/slide", frames=24, into=tmp_path / "added")
    agent = api.load(run.path)
    pixels, _ = make_env("toy/slide").reset(seed=0)
    assert agent.act(pixels, "toy/slide").shape == (1,)
    assert agent.act(pixels, TASK).shape == (2,)


# The weights file


def test_another_file_in_its_place_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "resnet.safetensors")
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config_for(path), SignalAt(step=12))
    finished = start(tmp_path / "finished", config_for(path, training__frames=24))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json*")}
    write_weights(path, seed=1)
    for go_on in (
        lambda: launch.resume(tmp_path / "run"),
        lambda: launch.add(finished.path, "toy/slide", frames=24, into=tmp_path / "copy"),
        lambda: api.load(finished.path),
    ):
        with pytest.raises(ConfigError, match=r"resnet\.safetensors is another file than wanted"):
            go_on()
    path.unlink()
    with pytest.raises(ConfigError, match=r"resnet\.safetensors cannot be read"):
        launch.resume(tmp_path / "run")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json*")} == before
    assert not (tmp_path / "copy").exists()
    write_weights(path)
    launch.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ([], "needs ImageNet weights"),
        (["--encoder.weights", "nowhere.safetensors"], "nowhere.safetensors cannot be read"),
        (["--encoder.weights", "nul\0byte"], "no such path"),
        (["--encoder.weights", "narrow.safetensors"], "bn1.bias has shape (2,), not (64,)"),
        (
            ["--encoder.weights", "narrow.safetensors", "--encoder.weights-sha256", "00000000"],
            "another file than wanted",
        ),
        (["--encoder.weights-sha256", "public"], "8 to 64 digits"),
        (["--encoder.resnet-size", "16"], "encoder.resnet_size is 16"),
        (["--agent.shift", "4"], "cannot be shifted"),
        (["--agent.q-regularisation", "on"], "cannot be shifted"),
        (["--agent.contrastive", "on"], "cannot be shifted"),
    ],
)
def test_a_mistake_is_one_line_before_a_run_folder_exists(
    flags: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_weights(tmp_path / "narrow.safetensors")
    assert main(["train", TASK, "--preset", "resnet50_sac", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert [path.name for path in tmp_path.iterdir()] == ["narrow.safetensors"]
