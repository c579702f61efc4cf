"""The listings compute what we compute: the same losses and gradients from the same weights and batch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from benchmarks.experience import ACTIONS
from benchmarks.listings import ListingsAgent, StackedBatch, encoder_weights, soft_update
from benchmarks.update_rows import TASK, agent_and_batch, with_agent
from ctrlformer.agents import SacAgent
from ctrlformer.config import Config

BATCH = 16  # torch draws normal numbers 16 at a time: one draw for two views gives what two draws give


def small(name: str) -> Config:
    """A preset whose weights hardly move: ours takes the actor's features before the encoder's step, not after."""
    config = with_agent(name, batch_size=BATCH, learning_rate=1e-9, head_width=64)
    encoder = config.encoder
    if encoder.kind == "ctrlformer":
        encoder = dataclasses.replace(encoder, dim=48, blocks_per_stage=min(2, encoder.blocks_per_stage))
    exact = dataclasses.replace(config.training, precision="fp32")  # auto takes bf16 where the processor is quick at it
    return dataclasses.replace(config, encoder=encoder, training=exact)


def same_noise(agent: SacAgent) -> None:
    torch.manual_seed(5)
    agent.generator.manual_seed(5)


def update_both(config: Config, times: int) -> tuple[SacAgent, ListingsAgent, list[tuple[dict[str, float], ...]]]:
    agent, batch = agent_and_batch(config)
    reference, stacked = ListingsAgent(agent, ACTIONS), StackedBatch.of(batch)
    found = []
    for _ in range(times):
        same_noise(agent)
        ours = {name: float(value) for name, value in agent.update(TASK, batch).items()}
        found.append((ours, reference.update(stacked)))
    return agent, reference, found


@pytest.mark.parametrize("name", ["paper", "compact_vit", "drq", "tiny"])
def test_losses_agree(name: str) -> None:
    _, _, found = update_both(small(name), times=3)
    for ours, theirs in found:
        shared = ours.keys() & theirs.keys()
        assert {"critic_loss", "q", "batch_reward"} <= shared
        assert ("contrastive_loss" in shared) == small(name).agent.contrastive
        assert {key: theirs[key] for key in shared} == pytest.approx({key: ours[key] for key in shared}, rel=1e-3)
    assert "actor_loss" in found[0][1].keys() & found[0][0].keys()
    assert "actor_loss" not in found[1][1].keys() | found[1][0].keys()  # every second update only


@pytest.mark.parametrize("name", ["paper", "compact_vit", "drq", "tiny"])
def test_gradients_agree(name: str) -> None:
    config = small(name)
    agent, reference, _ = update_both(config, times=2)  # the second has no actor's gradient on top
    ours = gradients(agent.encoder)
    expected = encoder_weights(ours, config)
    found = gradients(reference.encoder)
    assert expected.keys() == found.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 0
    # Convolutions of another memory layout round differently, and a ReLU at the edge then lets a gradient pass or not.
    rounding = 5e-3 if name == "drq" else 1e-4
    for part, gradient in expected.items():
        torch.testing.assert_close(found[part], gradient, rtol=1e-3, atol=rounding * largest, msg=part)
    for part, gradient in gradients(agent.heads[0].critic).items():
        torch.testing.assert_close(gradients(reference.critic)[part], gradient, rtol=1e-3, atol=1e-4, msg=part)


def test_a_changed_weight_changes_the_loss() -> None:
    agent, batch = agent_and_batch(small("compact_vit"))
    reference, stacked = ListingsAgent(agent, ACTIONS), StackedBatch.of(batch)
    with torch.no_grad():
        reference.encoder.head.weight.mul_(1.5)
    same_noise(agent)
    ours = float(agent.update(TASK, batch)["critic_loss"])
    assert reference.update(stacked)["critic_loss"] != pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize("name", ["paper", "compact_vit", "drq"])
def test_targets_follow_as_ours_do(name: str) -> None:
    config = small(name)
    learning = dataclasses.replace(config, agent=dataclasses.replace(config.agent, learning_rate=1e-3))
    agent, reference, _ = update_both(learning, times=2)  # by the second update every target has moved
    pairs = [(agent.heads[0].critic, agent.heads[0].target_critic), (reference.critic, reference.target_critic)]
    if config.agent.target_encoder == "ema":
        pairs += [(agent.encoder, agent.target_encoder), (reference.encoder, reference.target_encoder)]
    if config.agent.contrastive:
        pairs += [(agent.encoder, agent.byol_encoder), (reference.encoder, reference.byol_encoder)]
    gaps = [gap(online, target) for online, target in pairs]
    assert min(gaps) > 0
    assert gaps[1::2] == pytest.approx(gaps[::2], rel=0.05)


def gap(online: nn.Module, target: nn.Module) -> float:
    pairs = zip(online.parameters(), target.parameters(), strict=True)
    return sum(float((new - old).detach().abs().sum()) for new, old in pairs)


def test_soft_update_copies_buffers_and_mixes_parameters() -> None:
    online, target = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    nn.init.constant_(online.weight, 3.0)
    online.running_mean.fill_(7.0)
    soft_update(online, target, 0.25)
    assert target.weight.tolist() == [1.5, 1.5]
    assert target.running_mean.tolist() == [7.0, 7.0]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
