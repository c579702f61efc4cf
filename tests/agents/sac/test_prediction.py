"""Self-prediction: the next features, and what the step earns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ctrlformer.agents import SacAgent
from ctrlformer.agents.sac import losses
from ctrlformer.config import TransferConfig
from ctrlformer.config.presets import preset
from ctrlformer.replay import Batch

B, SIZE = 8, 24


def agent_for(name: str = "tiny", **settings: Any) -> SacAgent:
    config = preset(name)
    small = {"prediction": True, "contrastive": False, "head_width": 32, **settings}
    exact = replace(config.training, precision="fp32")
    agent = SacAgent(
        replace(config, env=replace(config.env, image_size=SIZE), agent=replace(config.agent, **small), training=exact),
        seed=3,
    )
    agent.add_task("old", 2)
    return agent


def batch_for(agent: SacAgent, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)

    def frames(views: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, 256, (views, B, SIZE, SIZE, 9), dtype=np.uint8))

    views, next_views = agent.views
    numbers = [torch.from_numpy(rng.uniform(0, 1, shape).astype(np.float32)) for shape in ((B, 2), B)]
    return Batch(frames(views), *numbers, torch.full((B,), 0.97), frames(next_views))


def test_the_prediction_s_loss_is_the_share_that_is_not_explained_whatever_the_features_size() -> None:
    following = torch.randn(B, 16, generator=torch.Generator().manual_seed(0))
    wanted = losses.standardised(following, 1e-2)
    for size in (1.0, 30.0):
        assert float(losses.prediction_loss(torch.zeros_like(wanted), size * following)) == pytest.approx(1.0)
        assert float(losses.prediction_loss(wanted, size * following)) == pytest.approx(0.0, abs=1e-9)


def test_the_reward_s_loss_is_the_share_that_is_not_explained() -> None:
    reward = torch.tensor([0.0, 1.0, 2.0, 5.0])
    assert float(losses.reward_loss(torch.zeros(4), reward)) == pytest.approx(1.0)
    assert float(losses.reward_loss(losses.standardised(100 * reward, 1e-3), reward)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", ["tiny", "drq"])
def test_it_learns_on_one_batch_and_reaches_the_encoder(name: str) -> None:
    agent = agent_for(name)
    batch = batch_for(agent)
    first = agent.update("old", batch)
    encoder = [p.detach().clone() for p in agent.encoder.parameters()]
    for _ in range(30):
        last = agent.update("old", batch)
    assert float(last["prediction_loss"]) < 0.5 * float(first["prediction_loss"])
    assert float(last["reward_loss"]) < 0.5 * float(first["reward_loss"])
    without = agent_for(name, prediction_weight=0.0)
    without.update("old", batch)
    changed = [not torch.equal(a, b) for a, b in zip(encoder, without.encoder.parameters(), strict=True)]
    assert any(changed)


def test_a_frozen_encoder_is_not_trained_by_it_and_copied_heads_bring_their_predictor() -> None:
    agent = agent_for()
    agent.update("old", batch_for(agent))
    agent.add_task("new", 2, TransferConfig(heads="copy", protect="freeze"))
    old, new = (agent.heads[number].state_dict() for number in range(2))
    names = [name for name in old if name.startswith("predictor")]
    assert names
    assert all(torch.equal(old[name], new[name]) for name in names)
    assert "prediction_loss" not in agent.update("new", batch_for(agent))


def test_without_it_nothing_is_made() -> None:
    assert not any("predictor" in name for name in agent_for(prediction=False).tensors()["heads"])


def test_preset_gpu_at_its_own_size_learns_on_a_cpu() -> None:
    config = preset("gpu")
    size, agent = config.env.image_size, SacAgent(config, seed=3)
    agent.add_task("cartpole_balance", 1)
    rng = np.random.default_rng(0)
    shown, after = torch.from_numpy(rng.integers(0, 256, (2, 1, B, size, size, 9), dtype=np.uint8))
    batch = Batch(shown, torch.rand(B, 1), torch.rand(B), torch.full((B,), 0.98), after)
    first, *_, last = (agent.update("cartpole_balance", batch) for _ in range(10))
    assert float(last["prediction_loss"]) < float(first["prediction_loss"])
    assert float(last["reward_loss"]) < float(first["reward_loss"])
