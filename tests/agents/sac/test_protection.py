"""Penalties and PackNet: against small cases worked out by hand, and what they do to an agent of each encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctrlformer.agents import SacAgent
from ctrlformer.agents.sac.packnet import PackNet
from ctrlformer.agents.sac.protection import WeightPenalty, fisher
from ctrlformer.config import Config, TransferConfig
from ctrlformer.config.presets import preset
from ctrlformer.errors import ConfigError
from ctrlformer.replay import Batch
from ctrlformer.replay.rehearsal import RehearsalBuffer

TINY = preset("tiny")
B, SIZE = 4, 36
ENCODERS: dict[str, Any] = {
    "ctrlformer": {"task_attention": "causal"},
    "places": {"kind": "places", "patch_size": 4, "dim": 8},
    "conv": {"kind": "conv", "patch_size": 4, "dim": 8},
    "cnn": {"kind": "cnn"},
}


def two_by_two() -> nn.Linear:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -4.0], [3.0, 1.5]]))
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    return layer


# L2 and EWC by hand


def test_l2_is_the_squared_distance_from_the_anchor() -> None:
    layer = two_by_two()
    penalty = WeightPenalty(layer, 1.0)
    assert penalty().item() == 0.0
    with torch.no_grad():
        layer.weight[0, 0] += 2.0
        layer.bias[1] -= 3.0
    loss = penalty()
    assert loss.item() == 4.0 + 9.0
    loss.backward()  # type: ignore[no-untyped-call]
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[4.0, 0.0], [0.0, 0.0]]


def test_fisher_information_of_a_linear_gaussian_policy() -> None:
    """mean_a = w_a . x and a log std of its own for each action: d mean_a / d w_ai = x_i, so the information is
    E[x_i^2] / std_a^2 for the weights, and 2 for the log std."""
    layer = two_by_two()
    log_std = nn.Parameter(torch.tensor([0.0, 0.5]).log1p())  # std 1 and 1.5
    observations = torch.tensor([[1.0, 2.0], [3.0, 0.0]])  # mean squares 5 and 2
    of_weight, of_bias, of_std = fisher(
        lambda x: (layer(x), log_std.expand(len(x), 2)), observations, [layer.weight, layer.bias, log_std]
    )
    assert torch.allclose(of_weight, torch.tensor([[5.0, 2.0], [5 / 2.25, 2 / 2.25]]))
    assert torch.allclose(of_bias, torch.tensor([1.0, 1 / 2.25]))
    assert torch.allclose(of_std, torch.tensor([2.0, 2.0]))


def test_ewc_weighs_by_the_information_of_all_old_policies() -> None:
    layer = two_by_two()
    penalty = WeightPenalty(layer, 0.0)
    still = torch.zeros(1, 2)
    policies = [(lambda x: (layer(x), still), torch.tensor([[1.0, 0.0]])) for _ in range(2)]
    penalty.weigh(policies)
    with torch.no_grad():
        layer.weight += torch.tensor([[1.0, 10.0], [2.0, 10.0]])
    assert penalty().item() == 2 * (1.0 + 4.0), "the second input is never on: its weights are free"


# PackNet by hand


def test_a_stage_keeps_its_largest_weights_and_leaves_the_others_free() -> None:
    layer = two_by_two()
    packnet = PackNet(layer, share=0.5)
    packnet.prune()
    ((weight, owner),) = packnet.owned
    assert weight.tolist() == [[0.0, -4.0], [3.0, 0.0]]
    assert owner.tolist() == [[0, 1], [1, 0]]
    packnet.begin_stage()
    with torch.no_grad():
        weight.copy_(torch.tensor([[0.2, -4.0], [3.0, -0.1]]))
    packnet.prune()
    assert weight.tolist() == [[pytest.approx(0.2), -4.0], [3.0, 0.0]], "half of the two that were free"
    assert owner.tolist() == [[2, 1], [1, 0]]


def test_only_weights_of_the_stage_step() -> None:
    layer = two_by_two()
    packnet = PackNet(layer, share=0.5)

    def step() -> list[list[float]]:
        with packnet.held(), torch.no_grad():
            layer.weight += 1.0
        return layer.weight.tolist()

    assert step() == [[2.0, -3.0], [4.0, 2.5]], "all are free in the first stage"
    packnet.prune()
    assert step() == [[0.0, -2.0], [5.0, 0.0]], "what was pruned stays zero"
    packnet.begin_stage()
    assert not layer.bias.requires_grad
    assert step() == [[1.0, -2.0], [5.0, 1.0]], "then only what was free"


def test_an_old_task_has_the_weights_of_its_time() -> None:
    layer = two_by_two()
    packnet = PackNet(layer, share=0.5)
    packnet.add_task()
    packnet.begin_stage()
    packnet.add_task()
    with torch.no_grad():
        layer.weight += torch.tensor([[7.0, 0.0], [0.0, 7.0]])
    now = layer.weight.tolist()
    with packnet.weights_of(0):
        assert layer.weight.tolist() == [[0.0, -4.0], [3.0, 0.0]]
    with packnet.weights_of(1):
        assert layer.weight.tolist() == now
    assert layer.weight.tolist() == now == [[7.0, -4.0], [3.0, 7.0]]


# Agents


def agent_for(protect: Any, encoder: str, **transfer: Any) -> SacAgent:
    return SacAgent(config_for(protect, encoder, **transfer), seed=3)


def config_for(protect: Any, encoder: str, **transfer: Any) -> Config:
    return replace(
        TINY,
        env=replace(TINY.env, image_size=SIZE),
        encoder=replace(TINY.encoder, **ENCODERS[encoder]),
        agent=replace(TINY.agent, contrastive=False, batch_size=B),
        transfer=TransferConfig(protect=protect, encoder_lr_scale=1.0, **transfer),
    )


def pixels(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (*shape, SIZE, SIZE, 9), dtype=np.uint8))


def learn(agent: SacAgent, task: str, updates: int, first: int = 0) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = {}
    for number in range(first, updates):
        rng = np.random.default_rng(number)
        action = torch.from_numpy(rng.uniform(-1, 1, (B, 2)).astype(np.float32))
        reward = torch.from_numpy(rng.uniform(0, 1, B).astype(np.float32))
        views, next_views = agent.views
        shown, after = pixels(number, views, B), pixels(number + 100, next_views, B)
        batch = Batch(shown, action, reward, torch.full((B,), 0.97), after)
        metrics |= agent.update(task, batch, number / updates)
    return metrics


def later_stage(agent: SacAgent) -> Tensor:
    """Begin a second stage, and return the old task's features of some observations until then."""
    shown = pixels(5, 8)
    outputs = agent.outputs("old", shown)
    agent.add_task("new", 2, agent.config.transfer)
    agent.protect([RehearsalBuffer("old", shown, outputs, "")])
    return outputs.features


def drift(protect: str, encoder: str) -> float:
    agent = agent_for(protect, encoder)
    agent.add_task("old", 2)
    learn(agent, "old", 3)
    before = later_stage(agent)
    metrics = learn(agent, "new", 12)
    assert ("protection_loss" in metrics) == (protect != "none")
    return float((agent.outputs("old", pixels(5, 8)).features - before).square().mean().sqrt())


@pytest.mark.parametrize("encoder", ENCODERS)
def test_penalties_hold_old_outputs(encoder: str) -> None:
    free = drift("none", encoder)
    assert drift("l2", encoder) < 0.5 * free
    assert drift("ewc", encoder) < 0.5 * free


@pytest.mark.parametrize("encoder", ENCODERS)
def test_packnet_plays_an_old_task_to_the_bit_as_at_its_stages_end(encoder: str) -> None:
    agent = agent_for("packnet", encoder)
    agent.add_task("old", 2)
    learn(agent, "old", 5)
    before, shown = later_stage(agent), pixels(9, 1)[0].numpy()
    action = agent.policy("old", explore=False)(shown)
    encoder_before = {name: p.detach().clone() for name, p in agent.encoder.named_parameters()}
    learn(agent, "new", 5)
    moved = [name for name, p in agent.encoder.named_parameters() if not torch.equal(p, encoder_before[name])]
    assert len(moved) > 1, "the encoder learns, not the new token alone"
    assert torch.equal(agent.outputs("old", pixels(5, 8)).features, before)
    assert np.array_equal(agent.policy("old", explore=False)(shown), action)


@pytest.mark.parametrize("protect", ["l2", "ewc", "packnet"])
def test_a_restored_agent_learns_on_to_the_bit(protect: str) -> None:
    agent = agent_for(protect, "ctrlformer")
    agent.add_task("old", 2)
    learn(agent, "old", 5)
    later_stage(agent)
    learn(agent, "new", 3)
    again = agent_for(protect, "ctrlformer")
    again.add_task("old", 2)
    again.add_task("new", 2, again.config.transfer)
    again.load_tensors({part: {k: v.clone() for k, v in group.items()} for part, group in agent.tensors().items()})
    for one in (agent, again):
        learn(one, "new", 8, first=3)
    found, expected = again.tensors(), agent.tensors()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[part][name], tensor) for part in expected for name, tensor in expected[part].items())


def test_packnet_is_for_all_stages_and_not_for_dreamer() -> None:
    packed = replace(config_for("packnet", "cnn"), tasks=("a", "b"))
    with pytest.raises(ConfigError, match="packnet prunes from the first stage on"):
        replace(packed, added=(replace(packed.stages[0], tasks=("c",), transfer=TransferConfig()),))
    for protect in ("packnet", "ewc", "rehearse"):
        with pytest.raises(ConfigError, match=f"transfer.protect {protect} is not made for agent.kind dreamer"):
            replace(preset("dreamer"), tasks=("a",), transfer=TransferConfig(protect=protect))  # type: ignore[arg-type]
