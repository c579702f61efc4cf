"""SAC on stored places: rows are what the encoder gives, nothing is lost in a checkpoint, and it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ctrlformer.agents import PlacesAgent, make_agent
from ctrlformer.config import Config, EnvConfig, TransferConfig
from ctrlformer.config.presets import overridden, preset
from ctrlformer.errors import ConfigError, NonFiniteError
from ctrlformer.replay import Replay

TASK = "toy/reach"
SIZE = 16
SMALL = overridden(
    replace(preset("places"), env=EnvConfig(image_size=SIZE), training=preset("tiny").training, tasks=(TASK,)),
    {
        "encoder.stem_width": 8,
        "encoder.questions": 4,
        "encoder.feature_dim": 8,
        "agent.batch_size": 8,
        "agent.head_width": 16,
        "agent.painted": 6,
        "agent.refreshed": 4,
    },
)


def agent_for(config: Config = SMALL) -> PlacesAgent:
    agent = make_agent(config, seed=1)
    assert isinstance(agent, PlacesAgent)
    agent.add_task(TASK, 2)
    return agent


def replay_for(steps: int = 30) -> Replay:
    rng = np.random.default_rng(0)
    replay = Replay(None, 100, 2, SIZE, 3)
    replay.begin(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8))
    for _ in range(steps):
        frame = rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        replay.add(rng.uniform(-1, 1, 2).astype(np.float32), float(rng.random()), False, frame)
    return replay


def test_stored_rows_are_what_the_encoder_gives() -> None:
    config = overridden(SMALL, {"agent.refreshed": 400, "agent.learning_rate": 1e-12, "agent.late_learning_rate": None})
    agent, replay = agent_for(config), replay_for()
    for number in range(2):  # the second time statistics of pixels and features are known
        agent.update(TASK, agent.draw(replay, np.random.default_rng(number)))
    batch = agent.draw(replay, np.random.default_rng(5))
    shown = replay.sample(np.random.default_rng(5), 8, n_step=1, shift=0, views=1, next_views=1)
    features = agent._read(TASK, batch)[0]
    for kept, stacks in ((features.now, shown.observation), (features.next_policy, shown.next_observation)):
        with torch.no_grad():
            torch.testing.assert_close(kept[0], agent.encoder(stacks[0], 0).policy, atol=1e-3, rtol=1e-3)


def test_the_critics_send_no_gradient_into_the_encoder() -> None:
    agent, replay = agent_for(), replay_for()
    features = agent._read(TASK, agent.draw(replay, np.random.default_rng(0)))[0]
    assert not features.now.requires_grad
    assert features.painting is not None
    features.painting.backward()  # type: ignore[no-untyped-call]
    without = [name for name, p in agent.encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_a_saved_agent_continues_exactly() -> None:
    agent, replay, rng = agent_for(), replay_for(), np.random.default_rng(0)
    for _ in range(3):
        agent.update(TASK, agent.draw(replay, rng))
    twin = agent_for()
    twin.load_tensors({name: {k: v.clone() for k, v in part.items()} for name, part in agent.tensors().items()})
    batch = agent.draw(replay, rng)
    ours, theirs = agent.update(TASK, batch), twin.update(TASK, batch)
    assert {name: float(value) for name, value in ours.items()} == {name: float(v) for name, v in theirs.items()}


def test_a_reward_that_is_not_finite_stops_the_update_before_anything_changes() -> None:
    agent, replay = agent_for(), replay_for()
    batch = agent.draw(replay, np.random.default_rng(0))
    batch.reward[2] = np.nan
    before = {name: value.clone() for name, value in agent.encoder.state_dict().items()}
    with pytest.raises(NonFiniteError, match="reward"):
        agent.update(TASK, batch)
    assert all(torch.equal(value, before[name]) for name, value in agent.encoder.state_dict().items())
    assert not len(agent.tensors()["places"]["0"])


def test_rows_that_do_not_fit_are_refused() -> None:
    saved = agent_for().tensors()
    saved["places"]["0"] = torch.zeros(2, 5)
    with pytest.raises(ValueError, match="places"):
        agent_for().load_tensors(saved)


def test_a_frozen_encoder_leaves_old_tasks_as_they_are() -> None:
    agent, replay, rng = agent_for(), replay_for(), np.random.default_rng(0)
    agent.update(TASK, agent.draw(replay, rng))
    shown = replay.observations(np.random.default_rng(1), 5)
    before = agent.outputs(TASK, shown)
    agent.add_task("toy/reach_sparse", 2, TransferConfig(protect="freeze"))
    assert list(agent.tensors()["places"]) == ["1"], "the finished task's rows are no longer needed"
    token = agent.encoder.policy_tokens[1].detach().clone()  # type: ignore[union-attr, index]
    for _ in range(3):
        agent.update("toy/reach_sparse", agent.draw(replay, rng))
    assert not torch.equal(agent.encoder.policy_tokens[1], token)  # type: ignore[union-attr, index]
    for old, new in zip(before, agent.outputs(TASK, shown), strict=True):
        assert torch.equal(old, new)


def test_places_have_no_contrast() -> None:
    with pytest.raises(ConfigError, match=r"agent\.contrastive off"):
        overridden(SMALL, {"agent.contrastive": True})
