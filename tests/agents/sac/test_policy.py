"""Policies of one episode, and the noise they explore with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ctrlformer.agents.sac.agent import SacAgent
from ctrlformer.agents.sac.policy import OCTAVES, PinkNoise
from ctrlformer.config.presets import make_config
from ctrlformer.replay import Replay


def noise(seed: int, action_dim: int = 400) -> PinkNoise:
    generator = torch.Generator().manual_seed(seed)
    return PinkNoise(lambda *shape: torch.randn(shape, generator=generator), action_dim)


def steps(pink: PinkNoise, count: int) -> torch.Tensor:
    return torch.cat([pink() for _ in range(count)])  # (count, A)


def test_every_step_is_standard_normal() -> None:
    drawn = steps(noise(0), 200)
    assert abs(float(drawn.mean())) < 0.05
    for first in (0, 100):  # from the first step on
        assert float(drawn[first : first + 20].std()) == pytest.approx(1.0, abs=0.05)


def test_it_wanders_as_one_over_f_does() -> None:
    """The power of an octave of frequencies is the same for slow and quick ones; white noise doubles it each time."""
    drawn = steps(noise(1), 512)
    power = torch.fft.rfft(drawn, dim=0).abs().square().mean(1)  # (257,)
    octaves = [float(power[start : 2 * start].sum()) for start in (8, 16, 32, 64)]
    assert max(octaves) < 1.5 * min(octaves)


def test_its_memory_is_where_it_continues() -> None:
    pink = noise(2, action_dim=3)
    steps(pink, 5)
    memory, state = pink.memory.clone(), torch.Generator().manual_seed(9)
    again = PinkNoise(lambda *shape: torch.randn(shape, generator=state), 3, memory)
    assert torch.equal(again(), pink())
    with pytest.raises(ValueError, match="noise of"):
        PinkNoise(torch.randn, 2, memory)


def test_policies_explore_with_it_and_mean_actions_have_no_noise() -> None:
    config = make_config(["toy/reach"], "tiny", None, 1, {})
    pink = replace(config, agent=replace(config.agent, exploration="pink"))
    size = config.env.image_size
    still = np.zeros((size, size, 9), np.uint8)
    changes = {}
    for name, each in (("white", config), ("pink", pink)):
        agent = SacAgent(each, seed=1)
        agent.add_task("toy/reach", 2)
        policy = agent.policy("toy/reach", explore=True)
        actions = np.stack([policy(still) for _ in range(100)])
        changes[name] = float(np.abs(np.diff(actions, axis=0)).mean())
        assert (policy.memory is None) == (name == "white")
        assert agent.policy("toy/reach", explore=False).memory is None
    memory = policy.memory
    assert memory is not None
    assert memory.shape == (OCTAVES, 2)
    assert changes["pink"] < 0.8 * changes["white"]  # the same spread, in smaller steps


def test_a_policy_reads_its_own_last_actions_and_continues_from_its_memory() -> None:
    """The same picture again and again: only the actions before it can make the answers differ."""
    agent = SacAgent(make_config(["toy/reach"], "tiny", None, 1, {"agent.past_actions": 2}), seed=1)
    agent.add_task("toy/reach", 2)
    size = agent.config.env.image_size
    still = np.zeros((size, size, 9), np.uint8)
    policy = agent.policy("toy/reach", explore=False)
    played = [policy(still) for _ in range(3)]
    assert len({action.tobytes() for action in played}) == 3
    assert policy.memory is not None
    assert np.array_equal(policy.memory.numpy(), np.stack(played[:0:-1]))
    middle = agent.policy("toy/reach", explore=False, memory=torch.from_numpy(np.stack(played[1::-1])))
    assert np.array_equal(middle(still), played[2])
    features = agent.features("toy/reach", still, torch.from_numpy(np.concatenate(played[1::-1]))[None])
    assert np.array_equal(agent.actor("toy/reach").mean_action(features)[0].detach().numpy(), played[2])
    with pytest.raises(ValueError, match="memory"):
        agent.policy("toy/reach", explore=True, memory=torch.zeros(2, 3))


def test_actor_and_critics_learn_from_the_actions_before() -> None:
    """Rewards tell the last action, which no picture shows: critics that read it come nearer than those that do not."""
    errors = {}
    for count in (0, 1):
        overrides = {"agent.past_actions": count, "agent.discount": 0.0, "agent.batch_size": 64, "agent.shift": 0}
        agent = SacAgent(make_config(["toy/reach"], "tiny", None, 1, overrides), seed=1)
        agent.add_task("toy/reach", 2)
        rng, size = np.random.default_rng(0), agent.config.env.image_size
        replay = Replay(None, 300, 2, size)
        replay.begin(np.zeros((size, size, 3), np.uint8))
        before = np.zeros(2, np.float32)
        for _ in range(300):
            action = rng.uniform(-1, 1, 2).astype(np.float32)
            replay.add(action, float(before[0]), False, np.zeros((size, size, 3), np.uint8))
            before = action
        errors[count] = float(
            [agent.update("toy/reach", agent.draw(replay, rng))["critic_loss"] for _ in range(100)][-1]
        )
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("kind", ["ctrlformer", "cnn"])
def test_outputs_of_tasks_with_other_actions_can_be_compared(kind: str) -> None:
    """The actions before belong to the heads: as many features of an observation, however many actions a task has."""
    overrides = {"agent.past_actions": 2, "encoder.kind": kind, "encoder.normalise_pixels": False}
    agent = SacAgent(make_config(["a", "b"], "tiny", None, 1, overrides), seed=1)
    agent.add_task("a", 1)
    agent.add_task("b", 3)
    size = agent.config.env.image_size
    shapes = [agent.outputs(task, torch.zeros(4, size, size, 9, dtype=torch.uint8)).features.shape for task in "ab"]
    assert shapes[0] == shapes[1]
