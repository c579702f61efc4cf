"""Tasks learned together: each of them learns all of its parts, as often as its own updates say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctrlformer.agents import SacAgent
from ctrlformer.config.presets import preset
from ctrlformer.replay import Batch

ROUNDS = 8  # a multiple of actor_every and target_every
B = 4

# Frames of a step of each task; the task with the fewest frames so far is always the next one.
EQUAL = [(2, 2), (4, 4, 4), (8, 8, 8, 8)]
DIFFERENT = [(2, 4), (2, 4, 8), (2, 2, 4, 8)]


def agent_for(tasks: int) -> SacAgent:
    config = preset("tiny")
    settings = replace(config.agent, actor_every=2, target_every=2, critic_tau=0.5)
    agent = SacAgent(replace(config, env=replace(config.env, image_size=24), agent=settings), seed=3)
    for number in range(tasks):
        agent.add_task(f"task{number}", 2)
    return agent


def batch_for(agent: SacAgent, seed: int) -> Batch:
    rng = np.random.default_rng(seed)

    def frames(views: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, 256, (views, B, 24, 24, 9), dtype=np.uint8))

    views, next_views = agent.views
    numbers = [torch.from_numpy(rng.uniform(0, 1, shape).astype(np.float32)) for shape in ((B, 2), B)]
    return Batch(frames(views), *numbers, torch.full((B,), 0.97), frames(next_views))


def parts(agent: SacAgent, task: int) -> dict[str, Tensor]:
    """A copy of everything that is the task's own, each part as one vector."""
    heads = agent.heads[task]

    def vector(module: nn.Module) -> Tensor:
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    return {
        "token": agent.encoder.policy_tokens[task].detach().clone(),  # type: ignore[index, union-attr]
        "actor": vector(heads.actor),  # type: ignore[arg-type]
        "critic": vector(heads.critic),  # type: ignore[arg-type]
        "target critic": vector(heads.target_critic),  # type: ignore[arg-type]
        "temperature": heads.log_temperature.detach().clone(),  # type: ignore[operator, union-attr]
    }


@pytest.mark.parametrize("repeats", EQUAL + DIFFERENT)
def test_every_part_of_every_task_moves_as_often_as_its_own_updates_say(repeats: tuple[int, ...]) -> None:
    agent, frames = agent_for(len(repeats)), [0] * len(repeats)
    updates = [0] * len(repeats)
    moves = [dict.fromkeys(parts(agent, 0), 0) for _ in repeats]
    while min(frames) < ROUNDS * max(repeats):
        task = min(range(len(repeats)), key=lambda number: frames[number])
        before = parts(agent, task)
        agent.update(f"task{task}", batch_for(agent, sum(updates)))
        for name, now in parts(agent, task).items():
            moves[task][name] += not torch.equal(before[name], now)
        frames[task] += repeats[task]
        updates[task] += 1
    for done, moved in zip(updates, moves, strict=True):
        half = (done + 1) // 2
        assert moved == {"token": done, "critic": done, "actor": half, "temperature": half, "target critic": done // 2}
