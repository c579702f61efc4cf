"""DrQ with BYOL: the convolutional encoder learns from both losses, and takes up tasks like any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctrlformer.agents import SacAgent
from ctrlformer.config import Config, EnvConfig, TransferConfig
from ctrlformer.config.presets import preset
from ctrlformer.replay import Batch
from ctrlformer.replay.rehearsal import Rehearsal

SIZE, B = 20, 6


def small_config(name: str = "drq_contrastive", **settings: Any) -> Config:
    config = preset(name)
    heads = {"head_width": 16, "projector_hidden": 16, "projector_dim": 8}
    return replace(config, env=EnvConfig(image_size=SIZE), agent=replace(config.agent, **heads | settings))


def agent_for(name: str = "drq_contrastive", **settings: Any) -> SacAgent:
    agent = SacAgent(small_config(name, **settings), seed=3)
    agent.add_task("old", 2)
    return agent


def pictures(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (*shape, SIZE, SIZE, 9), dtype=np.uint8))


def batch_for(agent: SacAgent, task: str = "old", seed: int = 0) -> Batch:
    rng, (views, next_views) = np.random.default_rng(seed), agent.views
    return Batch(
        pictures(views, B, seed=seed),
        torch.from_numpy(rng.uniform(-1, 1, (B, agent.action_dims[task])).astype(np.float32)),
        torch.from_numpy(rng.uniform(0, 1, B).astype(np.float32)),
        torch.full((B,), 0.97),
        pictures(next_views, B, seed=seed + 100),
    )


def learn(agent: SacAgent, task: str = "old", updates: int = 2) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = {}
    for seed in range(updates):
        metrics |= agent.update(task, batch_for(agent, task, seed))
    return metrics


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(before: dict[str, Tensor], module: nn.Module) -> bool:
    return all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())


# BYOL on the convolutional feature


def test_byols_projector_reads_the_convolutions_through_a_projection_of_its_own() -> None:
    agent = agent_for()
    tokens = agent.encoder(pictures(3, seed=0), 0)
    assert torch.equal(tokens.contrastive, tokens.policy)
    projection = agent.contrast.project[0]
    assert projection(tokens.contrastive).shape == (3, 50)
    assert agent.contrast.project(tokens.contrastive).shape == (3, 8)


def test_byols_target_has_its_own_rate_and_drqs_target_encoder_that_of_the_critics() -> None:
    agent = agent_for(critic_tau=0.25, byol_momentum=0.9, target_every=1)
    online = [agent.encoder, agent.encoder, agent.contrast.project]
    targets = [agent.target_encoder, agent.byol_encoder, agent.byol_projector]
    before = [weights(target) for target in targets]
    learn(agent, updates=1)
    for start, target, network, tau in zip(before, targets, online, (0.25, 0.1, 0.1), strict=True):
        for name, parameter in target.named_parameters():
            now = network.get_parameter(name)
            assert parameter.data_ptr() != now.data_ptr()
            assert not parameter.requires_grad
            torch.testing.assert_close(parameter.data, (1 - tau) * start[name] + tau * now.data, msg=name)
        for name, buffer in target.named_buffers():
            assert torch.equal(buffer, network.get_buffer(name)), name


def test_byol_compares_with_the_target_on_the_other_view() -> None:
    figures = []
    for spoil in (None, "target", "other view"):
        agent = agent_for(q_regularisation=False)
        batch = batch_for(agent)
        if spoil == "target":
            torch.manual_seed(0)
            nn.init.normal_(agent.byol_encoder.convolutions[0].weight)  # type: ignore[arg-type, index, union-attr]
        if spoil == "other view":
            batch.observation[1] = 255 - batch.observation[1]
        figures.append(float(agent.update("old", batch)["contrastive_loss"]))
    assert len(set(figures)) == 3


def test_byol_reaches_the_convolutions() -> None:
    found = []
    for weight in (0.0, 1.0):
        agent = agent_for(contrastive_weight=weight)
        learn(agent, updates=1)
        found.append(weights(agent.encoder)["convolutions.0.weight"])
    assert not torch.equal(*found)


@pytest.mark.parametrize("target_encoder", ["ema", "online"])
@pytest.mark.parametrize("q_regularisation", [True, False])
@pytest.mark.parametrize("contrastive", [True, False])
def test_switches_combine(target_encoder: str, q_regularisation: bool, contrastive: bool) -> None:
    agent = agent_for(target_encoder=target_encoder, q_regularisation=q_regularisation, contrastive=contrastive)
    assert agent.views == (2 if q_regularisation or contrastive else 1, 2 if q_regularisation else 1)
    before = weights(agent.encoder)
    metrics = learn(agent)
    assert not same(before, agent.encoder)
    assert ("contrastive_loss" in metrics) == contrastive
    assert all(torch.isfinite(value) for value in metrics.values())


def test_without_byol_it_is_drq() -> None:
    plain, switched = agent_for("drq"), agent_for(contrastive=False)
    for seed in range(2):
        expected, found = (agent.update("old", batch_for(agent, seed=seed)) for agent in (plain, switched))
        assert expected == found
    assert same(weights(plain.encoder), switched.encoder)


# One more task


def test_a_new_task_adds_heads_and_nothing_to_the_encoder() -> None:
    agent = agent_for()
    learn(agent)
    before = {name: id(p) for name, p in agent.encoder.named_parameters()}
    agent.add_task("new", 3, TransferConfig())
    assert {name: id(p) for name, p in agent.encoder.named_parameters()} == before
    old = weights(agent.heads[0])
    encoder = weights(agent.encoder)
    metrics = learn(agent, "new")
    assert "contrastive_loss" in metrics
    assert same(old, agent.heads[0])
    assert not same(encoder, agent.encoder)
    rate = small_config().agent.learning_rate
    rates = {id(p): g["lr"] for g in agent.critic_optimiser.param_groups for p in g["params"]}
    assert {round(rates[id(p)], 9) for p in agent.encoder.parameters()} == {round(0.05 * rate, 9)}


def test_a_frozen_encoder_keeps_the_old_task_bit_for_bit() -> None:
    agent = agent_for()
    learn(agent)
    pixels = pictures(1, seed=9)[0].numpy()
    action = agent.policy("old", explore=False)(pixels)
    agent.add_task("new", 2, TransferConfig(protect="freeze"))
    encoder = weights(agent.encoder)
    metrics = learn(agent, "new", 3)
    assert "contrastive_loss" not in metrics
    assert same(encoder, agent.encoder)
    assert np.array_equal(agent.policy("old", explore=False)(pixels), action)


def drift_after(protect: Any) -> float:
    agent = agent_for(learning_rate=1e-2)
    learn(agent, updates=4)
    agent.add_task("new", 2, TransferConfig(protect=protect, rehearsal_weight=100.0, encoder_lr_scale=1.0))
    pixels = pictures(16, seed=5)
    outputs = agent.outputs("old", pixels)
    rehearsal = Rehearsal("old", pixels, outputs, outputs.features.std(0).mean())
    for seed in range(12):
        batch = batch_for(agent, "new", seed)
        agent.update("new", batch, 0.0, rehearsal if protect == "rehearse" else None)
    return float((agent.outputs("old", pixels).features - outputs.features).square().mean())


def test_rehearsing_holds_the_old_tasks_features() -> None:
    assert drift_after("rehearse") < 0.5 * drift_after("none")


def test_an_agent_with_two_tasks_is_saved_and_goes_on_alike() -> None:
    agents = []
    for _ in range(2):
        agent = agent_for()
        agent.add_task("new", 2, TransferConfig())
        agents.append(agent)
    agent, twin = agents
    learn(agent, "new")
    twin.load_tensors({name: {k: t.clone() for k, t in part.items()} for name, part in agent.tensors().items()})
    assert agent.update("new", batch_for(agent, "new", 7)) == twin.update("new", batch_for(twin, "new", 7))
    assert same(weights(agent.target_encoder), twin.target_encoder)
