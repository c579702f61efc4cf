"""What tells how healthy a training is: rank, dead units, values against returns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ctrlformer.agents import SacAgent
from ctrlformer.agents.sac.diagnostics import DeadUnits, effective_rank
from ctrlformer.config.presets import preset
from ctrlformer.replay import Replay


def test_effective_rank_counts_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(400, 6, generator=generator)
    narrow = wide[:, :2] @ torch.randn(2, 6, generator=generator)
    assert 5.5 < effective_rank(wide) <= 6
    assert effective_rank(narrow) <= 2 + 1e-4
    assert effective_rank(torch.ones(5, 3)) == 1


@pytest.mark.parametrize("shape", [(4, 3), (4, 7, 3), (4, 3, 5, 5)])
def test_a_unit_is_dead_if_nothing_activates_it(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape) + 0.1
    unit = 1 if len(shape) == 4 else -1
    x.select(unit, 0).neg_()
    network, dead = nn.Sequential(nn.ReLU()), DeadUnits()
    with dead.watch([network]):
        network(x)
    network(x)  # not watched
    assert (dead.dead, dead.units) == (1, 3)


def test_values_and_returns_are_of_the_newest_episode() -> None:
    config = preset("tiny")
    agent = SacAgent(replace(config, agent=replace(config.agent, discount=0.5, rewards="step")), seed=3)
    agent.add_task("cartpole_swingup", 1)
    replay = Replay(None, capacity=50, action_dim=1, image_size=84)
    rng = np.random.default_rng(0)

    def frame() -> np.ndarray:
        return rng.integers(0, 256, (84, 84, 3), dtype=np.uint8)

    for rewards in ([9.0] * 5, [1.0, 0.0, 4.0]):
        replay.begin(frame())
        for number, reward in enumerate(rewards):
            replay.add(np.zeros(1, np.float32), reward, number == len(rewards) - 1, frame())
    found = agent.diagnose("cartpole_swingup", replay)
    assert found["monte_carlo"] == pytest.approx(np.mean([2.0, 2.0, 4.0]))  # terminated: nothing after it
    shown = replay.newest_episode(10, 0.5)
    features = agent.encoder(shown.observation[0], 0).policy
    values = torch.minimum(*agent.heads[0].critic(features, shown.action))
    assert found["episode_q"] == pytest.approx(float(values.mean().detach()), abs=1e-5)
    assert 1 <= found["effective_rank"] <= 3
    assert 0 <= found["dead_units"] <= 1
