"""Actor and critics that learn again from the batches of the last updates."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from ctrlformer.agents.sac.agent import SacAgent
from ctrlformer.agents.sac.recent import HeadBatch, RecentBatches
from ctrlformer.config import TransferConfig
from ctrlformer.config.presets import make_config
from ctrlformer.replay import Batch, Replay

TASK = "toy/reach"


def agent_for(head_updates: int) -> SacAgent:
    agent = SacAgent(make_config([TASK], "tiny", None, 1, {"agent.head_updates": head_updates}), seed=1)
    agent.add_task(TASK, 2)
    return agent


def batches(agent: SacAgent, count: int) -> list[Batch]:
    rng, size = np.random.default_rng(0), agent.config.env.image_size
    replay = Replay(None, 40, 2, size)
    replay.begin(rng.integers(256, size=(size, size, 3), dtype=np.uint8))
    for _ in range(40):
        frame = rng.integers(256, size=(size, size, 3), dtype=np.uint8)
        replay.add(rng.uniform(-1, 1, 2).astype(np.float32), float(rng.random()), False, frame)
    return [agent.draw(replay, rng) for _ in range(count)]


def head_batch(number: float) -> HeadBatch:
    return HeadBatch(*(torch.full((2, 3), number) for _ in HeadBatch._fields))


def test_the_newest_are_held_newest_first_and_come_back() -> None:
    recent = RecentBatches(2)
    assert recent.tensors() == {}
    for number in range(3):
        recent.add(head_batch(number))
    assert [float(batch.reward[0, 0]) for batch in recent] == [2.0, 1.0]
    again = RecentBatches(2)
    again.load_tensors(recent.tensors(), torch.device("cpu"))
    assert [float(batch.now[0, 0]) for batch in again] == [2.0, 1.0]
    with pytest.raises(ValueError, match="recent batches"):
        again.load_tensors({"now": torch.zeros(1)}, torch.device("cpu"))


def test_every_batch_is_learnt_from_again_at_later_updates_by_the_heads_alone() -> None:
    """Adam counts: heads step once at the first update, twice at the second, three times from then on."""
    agent = agent_for(2)
    numbers = {p: number for number, p in enumerate(agent.critic_optimiser.parameters)}
    stem = next(p for p in agent.encoder.parameters() if p.requires_grad)
    q1 = next(agent.heads[0].critic.parameters())
    for done, batch in enumerate(batches(agent, 4), start=1):
        agent.update(TASK, batch)
        steps = agent.critic_optimiser.tensors()
        assert int(steps[f"{numbers[stem]}.step"]) == done
        assert int(steps[f"{numbers[q1]}.step"]) == sum([1, 2, 3, 3][:done])


def test_they_are_part_of_what_an_agent_saves() -> None:
    first = agent_for(2)
    drawn = batches(first, 5)
    for batch in drawn[:3]:
        first.update(TASK, batch)
    second = agent_for(2)
    second.load_tensors(copy.deepcopy(first.tensors()))
    for batch in drawn[3:]:
        told = [agent.update(TASK, batch) for agent in (first, second)]
        assert told[0] == told[1]
    first.add_task("toy/slide", 2, TransferConfig())
    assert "recent" not in first.tensors()  # a finished task learns no more


def test_critics_come_nearer_to_what_a_batch_tells() -> None:
    errors = []
    for count in (0, 3):
        agent = agent_for(count)
        drawn = batches(agent, 60)
        errors.append(float([agent.update(TASK, batch)["critic_loss"] for batch in drawn][-1]))
    assert errors[1] < errors[0]
