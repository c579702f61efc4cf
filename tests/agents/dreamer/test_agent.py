"""Dreamer by itself: what learns from what, what tasks share, what a policy remembers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_dreamers import small_dreamer
from torch import Tensor

from ctrlformer.agents import DreamerAgent, make_agent
from ctrlformer.agents.base import TransferSource
from ctrlformer.agents.dreamer.rssm import State
from ctrlformer.config import TransferConfig
from ctrlformer.errors import NonFiniteError, TaskError
from ctrlformer.replay import Sequences

B, L, SIZE = 3, 5, 16
PLAIN = TransferConfig(encoder_lr_scale=1.0)


def agent_for(*actions: int, transfer: TransferConfig | None = None, **changes: Any) -> DreamerAgent:
    """An agent with a task for each number of actions, task0 and so on, all but the first by `transfer`."""
    agent = DreamerAgent(small_dreamer(**changes), seed=3)
    for number, action_dim in enumerate(actions or (2,)):
        agent.add_task(f"task{number}", action_dim, transfer if number else None)
    return agent


def batch_for(agent: DreamerAgent, task: str = "task0", seed: int = 0) -> Sequences:
    rng, actions = np.random.default_rng(seed), agent.action_dims[task]
    return Sequences(
        torch.from_numpy(rng.integers(0, 256, (B, L, SIZE, SIZE, 3), dtype=np.uint8)),
        torch.from_numpy(rng.uniform(-1, 1, (B, L - 1, actions)).astype(np.float32)),
        torch.from_numpy(rng.random((B, L - 1), np.float32)),
    )


def learn(agent: DreamerAgent, task: str = "task0", updates: int = 2) -> dict[str, Tensor]:
    for number in range(updates):
        figures = agent.update(task, batch_for(agent, task, number))
    return figures


def copied(agent: DreamerAgent) -> dict[str, Tensor]:
    return {f"{part}/{name}": t.clone() for part, group in agent.tensors().items() for name, t in group.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def observation(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (84, 84, 9), dtype=np.uint8)


# Learning


def test_what_is_imagined_is_earned_in_the_scale_of_the_settings() -> None:
    losses = []
    for scale in (1.0, 0.25):
        agent = agent_for(2, dreamer__reward_scale=scale)
        torch.nn.init.zeros_(agent.heads[0].value[-1].weight)  # only rewards count
        torch.nn.init.zeros_(agent.heads[0].value[-1].bias)
        losses.append(float(learn(agent, updates=1)["actor_loss"]))
    assert losses[1] == pytest.approx(0.25 * losses[0])


def test_make_agent_makes_it() -> None:
    assert isinstance(make_agent(small_dreamer()), DreamerAgent)


def test_an_update_moves_everything_of_its_task_and_logs_finite_figures() -> None:
    agent = agent_for(2)
    before = copied(agent)
    figures = learn(agent)
    weights = {name for name in before if name.startswith(("world/", "heads/"))}
    assert changed(before, copied(agent)) >= weights
    assert set(figures) == {
        "kl",
        "reconstruction_loss",
        "reward_loss",
        "feature_std",
        "gradient_norm",
        "actor_loss",
        "actor_gradient_norm",
        "value_loss",
        "value",
        "imagined_reward",
        "batch_reward",
    }
    assert all(bool(torch.isfinite(figure)) for figure in figures.values())
    assert agent.updates == 2


def test_behaviour_is_learnt_without_moving_the_world() -> None:
    agent = agent_for(2)
    before = copied(agent)
    agent._update_behaviour("task0", agent.world.latent.start(4))
    moved = changed(before, copied(agent))
    assert not any(name.startswith(("world/", "heads/0.reward", "heads/0.action_map")) for name in moved)
    assert any(name.startswith("heads/0.actor") for name in moved)
    assert any(name.startswith("heads/0.value") for name in moved)
    assert all(p.requires_grad for p in [*agent.world.parameters(), *agent.heads.parameters()])


def test_the_actor_s_gradient_passes_through_dynamics_and_reward() -> None:
    """Against differences, with the same noise; over one step, as the actor is not blamed for the states it sees."""
    agent = agent_for(1)
    agent.settings = replace(agent.settings, horizon=2)
    heads, start = agent._heads("task0").double(), State(*(part.double() for part in agent.world.latent.start(2)))
    agent.world.double()
    bias = heads.actor.trunk[-1].bias

    def imagined() -> Tensor:
        noise = torch.Generator().manual_seed(0)
        agent._noise = lambda *shape: torch.randn(shape, generator=noise).double()  # type: ignore[method-assign]
        return heads.reward(agent._imagine(heads, start)[0]).sum()

    (gradient,) = torch.autograd.grad(imagined(), bias)
    for number in range(len(bias)):
        difference = 0.0
        for move, sign in ((1e-5, 1), (-2e-5, -1)):
            with torch.no_grad():
                bias[number] += move
            difference += sign * float(imagined().detach()) / 2e-5
        with torch.no_grad():
            bias[number] += 1e-5
        assert gradient[number] != 0
        assert float(gradient[number]) == pytest.approx(difference, rel=1e-4)


def test_learning_on_one_batch_lowers_every_world_loss() -> None:
    agent = agent_for(2, dreamer__model_learning_rate=3e-3)
    frames, action, reward = batch_for(agent)
    batch = Sequences(frames // 4, action, reward)  # darker than what is first shown
    first, *_, last = (agent.update("task0", batch) for _ in range(30))
    assert last["reconstruction_loss"] < 0.8 * first["reconstruction_loss"]
    assert last["reward_loss"] < 0.5 * first["reward_loss"]


def test_a_bad_reward_or_loss_stops_before_anything_changes() -> None:
    agent = agent_for(2)
    before, batch = copied(agent), batch_for(agent)
    with pytest.raises(NonFiniteError, match="reward"):
        agent.update("task0", batch._replace(reward=torch.full((B, L - 1), float("nan"))))
    with pytest.raises(NonFiniteError, match=r"model loss is .*--dreamer\.model-learning-rate"):
        agent.update("task0", batch._replace(reward=torch.full((B, L - 1), 3e38)))
    assert changed(before, copied(agent)) <= {"random/generator"}


def test_updates_repeat_from_saved_tensors() -> None:
    agent, other = agent_for(2, 1), agent_for(2, 1)
    learn(agent, "task0")
    learn(agent, "task1", 1)
    other.load_tensors(copy.deepcopy(agent.tensors()))
    learn(agent, "task0")
    learn(other, "task0")
    assert not changed(copied(agent), copied(other))


# Tasks


def test_tasks_with_different_numbers_of_actions_share_the_world_and_nothing_else() -> None:
    agent = agent_for(2, 5, transfer=PLAIN)
    before = copied(agent)
    learn(agent, "task1")
    moved = changed(before, copied(agent))
    assert any(name.startswith("world/") for name in moved)
    assert not any(name.startswith("heads/0.") for name in moved)
    assert agent.action_dims == {"task0": 2, "task1": 5}


def test_a_frozen_world_leaves_the_old_task_bit_identical() -> None:
    agent = agent_for(2)
    learn(agent)
    seen = torch.from_numpy(np.stack([observation(seed)[:SIZE, :SIZE] for seed in range(3)]))
    before, outputs = copied(agent), agent.outputs("task0", seen)
    agent.add_task("task1", 1, TransferConfig(protect="freeze"))
    learn(agent, "task1")
    after = copied(agent)
    assert not any(name.startswith("world/") for name in changed(before, after))
    assert all(torch.equal(a, b) for a, b in zip(outputs, agent.outputs("task0", seen), strict=True))


def test_actions_mean_what_they_did_in_the_newest_task_with_as_many_and_heads_are_new_or_copied() -> None:
    for heads, equal in (("fresh", False), ("copy", True)):
        agent = agent_for(2)
        learn(agent)
        agent.add_task("other", 1, PLAIN)
        agent.add_task("alike", 2, TransferConfig(heads=heads))  # type: ignore[arg-type]
        old, new = agent._heads("task0"), agent._heads("alike")
        assert torch.equal(old.action_map.weight, new.action_map.weight)
        assert torch.equal(old.actor.trunk[0].weight, new.actor.trunk[0].weight) == equal
        assert torch.equal(old.reward[0].weight, new.reward[0].weight) == equal
        assert agent.has_copied_heads("alike") == equal
        assert not agent.has_copied_heads("other")


def test_the_world_learns_on_at_the_transfers_rate_and_new_heads_at_their_own() -> None:
    agent = agent_for(2, 2, transfer=TransferConfig(encoder_lr_scale=0.1))
    learn(agent, "task1", 1)
    rates = {id(p): group["lr"] for group in agent.model_optimiser.param_groups for p in group["params"]}
    assert all(rates[id(p)] == pytest.approx(6e-5) for p in agent.world.parameters())
    assert all(rates[id(p)] == pytest.approx(6e-4) for p in agent._heads("task1").reward.parameters())


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(TaskError, match="has not learnt 'other': it knows task0"):
        agent_for(2).policy("other", explore=False)


def test_outputs_are_the_same_whatever_else_is_looked_at() -> None:
    agent = agent_for(2)
    seen = torch.from_numpy(np.stack([observation(seed)[:SIZE, :SIZE] for seed in range(5)]))
    whole, part = agent.outputs("task0", seen), agent.outputs("task0", seen[2:3])
    assert whole.features.shape == (5, 12)
    assert whole.action.shape == whole.std.shape == (5, 2)
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a[2:3], b)


# Acting


def test_a_policy_remembers_and_a_new_one_does_not() -> None:
    policy, again = (agent_for(2).policy("task0", explore=False) for _ in range(2))
    first = policy(observation(0))
    assert first.shape == (2,)
    assert not np.array_equal(policy(observation(0)), first)
    assert np.array_equal(again(observation(0)), first)


def test_a_policy_goes_on_from_another_ones_memory_although_the_world_has_changed_since() -> None:
    agent = agent_for(2)
    policy = agent.policy("task0", explore=True)
    for seed in range(3):
        policy(observation(seed))
        learn(agent, updates=1)
    twin = agent.policy("task0", explore=True, memory=policy.memory.clone())
    random = agent.generator.get_state()
    expected = policy(observation(9))
    agent.generator.set_state(random)
    assert np.array_equal(twin(observation(9)), expected)
    assert torch.equal(twin.memory, policy.memory)


def test_evaluating_draws_nothing_and_exploring_stays_within_bounds() -> None:
    agent = agent_for(2, dreamer__exploration_noise=3.0)
    before = agent.generator.get_state()
    agent.policy("task0", explore=False)(observation())
    assert torch.equal(agent.generator.get_state(), before)
    policy = agent.policy("task0", explore=True)
    actions = np.stack([policy(observation(seed)) for seed in range(20)])
    assert np.abs(actions).max() == 1.0
    assert len(np.unique(actions)) > 2


def test_only_the_newest_frame_is_seen() -> None:
    agent, seen = agent_for(2), observation()
    other = seen.copy()
    other[..., :6] = 0
    assert np.array_equal(agent.policy("task0", False)(seen), agent.policy("task0", False)(other))
    other[..., 6:] = 0
    assert not np.array_equal(agent.policy("task0", False)(seen), agent.policy("task0", False)(other))


def test_in_the_warm_up_the_actor_waits() -> None:
    transfer = TransferConfig(heads="copy", warmup_updates=2)
    agent = agent_for(2)
    learn(agent)
    agent.add_task("task1", 2, transfer, TransferSource("task0", heads=True))
    before = copied(agent)
    learn(agent, "task1", 2)
    learnt = changed(before, copied(agent))
    assert any(name.startswith("heads/1.value") for name in learnt)
    assert not any(name.startswith(("heads/1.actor", "actor_optimiser")) for name in learnt)
    learn(agent, "task1", 1)
    assert any(name.startswith("heads/1.actor") for name in changed(before, copied(agent)))


def test_actions_mean_at_first_what_they_mean_in_the_source() -> None:
    agent = agent_for(2, 2, transfer=PLAIN)
    learn(agent, "task0")
    learn(agent, "task1")
    agent.add_task("task2", 2, PLAIN, TransferSource("task0", heads=False))
    heads = agent.heads.state_dict()
    of_map = [name.removeprefix("0.") for name in heads if name.startswith("0.action_map")]
    assert of_map
    assert all(torch.equal(heads[f"2.{name}"], heads[f"0.{name}"]) for name in of_map)
    assert not all(torch.equal(heads[f"1.{name}"], heads[f"0.{name}"]) for name in of_map)
