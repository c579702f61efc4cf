"""The agent's update, part by part, on small real networks."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ctrlformer.agents import SacAgent
from ctrlformer.agents.sac import losses
from ctrlformer.config import Config
from ctrlformer.config.presets import PAPER, preset
from ctrlformer.errors import NonFiniteError, TaskError
from ctrlformer.replay import Batch
from ctrlformer.system.device import compiler_trouble

TINY = preset("tiny")
B = 6


def agent_with(tasks: int = 1, config: Config = TINY, **settings: Any) -> SacAgent:
    agent = SacAgent(replace(config, agent=replace(config.agent, **settings)), seed=3)
    for number in range(tasks):
        agent.add_task(f"task{number}", 2)
    return agent


def batch_for(agent: SacAgent, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    views, next_views = agent.views
    arrays = (
        rng.integers(0, 256, (views, B, 84, 84, 9), dtype=np.uint8),
        rng.uniform(-1, 1, (B, 2)).astype(np.float32),
        rng.uniform(0, 1, B).astype(np.float32),
        np.full(B, 0.97, np.float32),
        rng.integers(0, 256, (next_views, B, 84, 84, 9), dtype=np.uint8),
    )
    return Batch(*map(torch.from_numpy, arrays))


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(before: dict[str, torch.Tensor], module: torch.nn.Module) -> list[str]:
    return [name for name, tensor in module.state_dict().items() if not torch.equal(before[name], tensor)]


def test_paper_is_the_appendix() -> None:
    a, t = PAPER.agent, PAPER.training
    assert (a.batch_size, a.learning_rate, a.discount, a.critic_tau) == (512, 1e-4, 0.99, 0.01)
    assert (a.adam_beta1, a.adam_beta2, a.weight_decay) == (0.9, 0.999, 0.1)
    assert (a.actor_every, a.target_every, a.updates_per_step, a.n_step) == (2, 2, 1, 1)
    assert (a.log_std_min, a.log_std_max, a.init_temperature, a.target_entropy) == (-10, 2, 0.1, None)
    assert (a.projector_hidden, a.projector_dim, a.byol_momentum) == (384, 96, 0.996)
    assert (a.head_layers, a.head_width, a.shift) == (3, 1024, 4)
    assert (t.seed_steps, t.replay_capacity, t.eval_every_frames, t.eval_episodes) == (1000, 100_000, 10_000, 10)
    assert a.contrastive
    assert a.q_regularisation
    assert a.learn_temperature
    assert a.late_learning_rate is None


def test_weight_decay_touches_encoder_matrices_only() -> None:
    agent = agent_with(config=replace(TINY, encoder=replace(TINY.encoder, positions="all")), weight_decay=0.1)
    decayed = {id(p) for g in agent.critic_optimiser.param_groups if g["weight_decay"] for p in g["params"]}
    expected = {id(p) for name, p in agent.encoder.named_parameters() if name.endswith("weight") and p.ndim > 1}
    assert decayed == expected
    everything = agent_with(decay_on="all", weight_decay=0.01)
    assert all(g["weight_decay"] == 0.01 for g in everything.critic_optimiser.param_groups)


def test_every_trainable_parameter_has_exactly_one_optimiser() -> None:
    agent = agent_with(tasks=2)
    owned = [id(p) for o in agent._optimisers for g in o.param_groups for p in g["params"]]
    modules = (agent.encoder, agent.contrast, agent.heads)
    wanted = [id(p) for module in modules for p in module.parameters() if p.requires_grad]
    assert sorted(owned) == sorted(wanted)


@pytest.mark.parametrize("target", ["ema", "online"])
@pytest.mark.parametrize("q_regularisation", [True, False])
@pytest.mark.parametrize("contrastive", [True, False])
def test_every_combination_of_switches_learns(target: str, q_regularisation: bool, contrastive: bool) -> None:
    targets = {"target_encoder": target, "contrastive_target": target}
    agent = agent_with(**targets, q_regularisation=q_regularisation, contrastive=contrastive)
    before = weights(agent.encoder)
    for seed in range(2):
        metrics = agent.update("task0", batch_for(agent, seed))
    assert changed(before, agent.encoder)
    assert ("contrastive_loss" in metrics) == contrastive
    assert all(torch.isfinite(value) for value in metrics.values())


def followed(target: torch.nn.Module, start: dict[str, torch.Tensor], online: torch.nn.Module, tau: float) -> None:
    """Check that a copy has moved by `tau` towards the online network, and taken over its buffers whole."""
    for name, parameter in target.named_parameters():
        now = online.get_parameter(name)
        assert parameter is not now
        assert not parameter.requires_grad
        torch.testing.assert_close(parameter.data, (1 - tau) * start[name] + tau * now.data, msg=name)
    for name, buffer in target.named_buffers():
        assert torch.equal(buffer, online.get_buffer(name)), name


def test_td_and_byol_targets_are_two_copies_each_at_its_own_rate() -> None:
    agent = agent_with(target_encoder="ema", target_every=1, critic_tau=0.3, byol_momentum=0.9)
    copies = (agent.target_encoder, agent.byol_encoder, agent.byol_projector)
    online = (agent.encoder, agent.encoder, agent.contrast.project)
    starts = [weights(copy) for copy in copies]
    assert dict(agent.byol_projector.named_buffers()), "the projector has batch norms"
    agent.update("task0", batch_for(agent), progress=0.0)
    for target, start, network, tau in zip(copies, starts, online, (0.3, 0.1, 0.1), strict=True):
        followed(target, start, network, tau)


def test_at_a_stages_end_byols_target_stands_still_and_the_td_target_does_not() -> None:
    agent = agent_with(target_encoder="ema", target_every=1)
    byol, target = (
        {name: p.clone() for name, p in copy.named_parameters()} for copy in (agent.byol_encoder, agent.target_encoder)
    )
    agent.update("task0", batch_for(agent), progress=1.0)
    assert all(torch.equal(byol[name], p) for name, p in agent.byol_encoder.named_parameters())
    assert not any(torch.equal(target[name], p) for name, p in agent.target_encoder.named_parameters() if p.ndim > 1)


def test_only_the_copies_that_are_asked_for_are_made() -> None:
    def copies(**settings: Any) -> set[str]:
        return agent_with(**settings).tensors().keys() & {"target_encoder", "byol_encoder", "byol_projector"}

    assert copies(target_encoder="ema", contrastive=False) == {"target_encoder"}
    assert copies(target_encoder="online", contrastive=True) == {"byol_encoder", "byol_projector"}
    assert copies(target_encoder="online", contrastive=True, contrastive_target="online") == set()


def test_target_critics_move_every_second_update_in_paper() -> None:
    agent = agent_with(target_every=2, critic_tau=0.5)
    heads = agent._heads("task0")
    before = weights(heads.target_critic)
    agent.update("task0", batch_for(agent))
    assert not changed(before, heads.target_critic)
    agent.update("task0", batch_for(agent))
    assert changed(before, heads.target_critic)


def test_the_actor_gives_the_encoder_no_gradient_and_leaves_the_critics_alone() -> None:
    agent = agent_with()
    heads = agent._heads("task0")
    agent.encoder.zero_grad()
    encoder, critic, actor = weights(agent.encoder), weights(heads.critic), weights(heads.actor)
    features = agent.encoder(batch_for(agent).observation[0], 0).policy
    agent._update_actor(heads, features.detach())
    assert all(p.grad is None for p in agent.encoder.parameters())
    assert not changed(encoder, agent.encoder)
    assert not changed(critic, heads.critic)
    assert changed(actor, heads.actor)


def test_the_actor_learns_every_second_update() -> None:
    agent = agent_with(actor_every=2)
    assert "actor_loss" in agent.update("task0", batch_for(agent))
    assert "actor_loss" not in agent.update("task0", batch_for(agent))


def test_both_views_reach_the_critics_loss() -> None:
    figures = []
    for view in (None, 0, 1):
        agent = agent_with(q_regularisation=True, contrastive=False)
        batch = batch_for(agent)
        if view is not None:
            batch.observation[view] = 255 - batch.observation[view]
        # The statistics see view 0: leave them out of it.
        agent.encoder.observe = lambda *_: None  # type: ignore[method-assign]
        figures.append(agent.update("task0", batch)["critic_loss"])
    assert len(set(figures)) == 3


def test_both_views_of_the_next_state_reach_the_target() -> None:
    figures = []
    for view in (None, 0, 1):
        agent = agent_with(q_regularisation=True)
        batch = batch_for(agent)
        if view is not None:
            batch.next_observation[view] = 255 - batch.next_observation[view]
        figures.append(agent.update("task0", batch)["q_target"])
    assert len(set(figures)) == 3


def test_critic_update_equals_the_listing() -> None:
    """One whole critic loss against Listing 3, a pass per call."""
    agent = agent_with(q_regularisation=True, contrastive=True, target_encoder="ema")
    batch = batch_for(agent)
    agent.encoder.observe(batch.observation[0], 0)
    slow = copy.deepcopy(agent)
    slow.generator = torch.Generator()
    slow.generator.set_state(agent.generator.get_state())
    agent.encoder.observe = lambda *_: None  # type: ignore[method-assign]
    metrics = agent.update("task0", batch)

    heads = slow._heads("task0")
    action, reward, discount = batch.action, batch.reward, batch.discount
    with torch.no_grad():
        noise = torch.randn(2 * B, 2, generator=slow.generator).view(2, B, 2)
        values = []
        for view in range(2):
            after = batch.next_observation[view]
            chosen = heads.actor.sample(slow.encoder(after, 0).policy, noise[view])
            q1, q2 = heads.target_critic(slow.target_encoder(after, 0).policy, chosen.action)
            values.append(torch.min(q1, q2) - heads.log_temperature.exp() * chosen.log_prob)
        target = reward + discount * (values[0] + values[1]) / 2
        critic = torch.zeros(())
        for view in range(2):
            q1, q2 = heads.critic(slow.encoder(batch.observation[view], 0).policy, action)
            critic += torch.nn.functional.mse_loss(q1, target) + torch.nn.functional.mse_loss(q2, target)
        online = slow.encoder(batch.observation[0], 0).contrastive
        other = slow.byol_encoder(batch.observation[1], 0).contrastive
        contrastive = losses.byol_loss(slow.contrast.predict(slow.contrast.project(online)), slow.byol_projector(other))
    assert metrics["critic_loss"] == pytest.approx(float(critic), rel=1e-4)
    assert metrics["contrastive_loss"] == pytest.approx(float(contrastive), rel=1e-3)


def test_learning_one_task_leaves_the_others_heads_alone() -> None:
    agent = agent_with(tasks=2)
    before = weights(agent.heads[0])
    agent.update("task1", batch_for(agent))
    assert not changed(before, agent.heads[0])


def test_saved_tensors_bring_back_the_same_future() -> None:
    agent = agent_with(contrastive=True, target_encoder="ema")
    agent.update("task0", batch_for(agent))
    twin = agent_with(contrastive=True, target_encoder="ema")
    # Contiguous, as tensors come out of a file, though the convolutions' own are channels-last.
    saved = {
        name: {key: value.clone().contiguous() for key, value in part.items()} for name, part in agent.tensors().items()
    }
    twin.load_tensors(saved)
    for seed in range(1, 4):
        assert agent.update("task0", batch_for(agent, seed)) == twin.update("task0", batch_for(twin, seed))
    for mine, theirs in zip(agent.tensors().items(), twin.tensors().items(), strict=True):
        assert mine[0] == theirs[0]
        assert all(torch.equal(mine[1][key], theirs[1][key]) for key in mine[1]), mine[0]


def test_the_late_learning_rate_holds_from_its_share_of_a_stage() -> None:
    agent = agent_with(learning_rate=1e-3, late_learning_rate=1e-4, late_from=0.5, encoder_lr_scale=0.5)
    for progress, expected in ((0.4, 1e-3), (0.5, 1e-4)):
        agent.update("task0", batch_for(agent), progress)
        assert agent.actor_optimiser.param_groups[-1]["lr"] == pytest.approx(expected)
        assert agent.critic_optimiser.param_groups[0]["lr"] == pytest.approx(0.5 * expected)


def test_a_linear_schedule_reaches_the_late_learning_rate_at_the_stages_end() -> None:
    agent = agent_with(learning_rate=1e-3, late_learning_rate=2e-4, rate_schedule="linear", late_from=0.1)
    for progress, expected in ((0.0, 1e-3), (0.5, 6e-4), (1.0, 2e-4), (1.5, 2e-4)):
        agent._set_learning_rate(progress, share=1.0)
        assert agent.actor_optimiser.param_groups[-1]["lr"] == pytest.approx(expected)


def test_seeds_decide_weights_and_noise() -> None:
    first, same = agent_with(), agent_with()
    pixels = batch_for(first).observation[0, 0].numpy()
    actions = [agent.policy("task0", explore=True)(pixels) for agent in (first, same)]
    assert np.array_equal(*actions)
    other = SacAgent(TINY, seed=4)
    other.add_task("task0", 2)
    assert not np.array_equal(actions[0], other.policy("task0", explore=True)(pixels))
    assert not np.array_equal(actions[0], first.policy("task0", explore=True)(pixels)), "noise moves on"
    still = first.policy("task0", explore=False)
    assert np.array_equal(still(pixels), still(pixels))
    assert np.abs(still(pixels)).max() <= 1


def test_non_finite_rewards_and_weights_stop_the_update_before_anything_changes() -> None:
    agent = agent_with()
    batch = batch_for(agent)
    batch.reward[2] = np.nan
    before = weights(agent.encoder)
    with pytest.raises(NonFiniteError, match="reward"):
        agent.update("task0", batch)
    assert not changed(before, agent.encoder)
    with torch.no_grad():
        agent._heads("task0").critic.q1[0].weight.fill_(float("inf"))  # type: ignore[operator, union-attr]
    actor = weights(agent._heads("task0").actor)
    with pytest.raises(NonFiniteError, match="critic"):
        agent.update("task0", batch_for(agent))
    assert not changed(actor, agent._heads("task0").actor)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(TaskError, match="'walker_walk': it knows task0"):
        agent_with().policy("walker_walk", explore=False)


@pytest.mark.slow  # a minute or two of compiling
def test_compiled_passes_learn_the_same() -> None:
    trouble = compiler_trouble(torch.device("cpu"))
    if trouble is not None:
        pytest.skip(trouble)
    plain, compiled = agent_with(), SacAgent(TINY, seed=3, compiled=True)
    compiled.add_task("task0", 2)
    for seed in range(2):
        expected, found = (agent.update("task0", batch_for(agent, seed)) for agent in (plain, compiled))
        assert float(found["critic_loss"]) == pytest.approx(float(expected["critic_loss"]), rel=1e-3)
        assert float(found["gradient_norm"]) == pytest.approx(float(expected["gradient_norm"]), rel=1e-2)


def test_rewards_per_frame_are_divided_by_the_action_repeat() -> None:
    """cartpole repeats an action for 8 frames: values then have the same scale whatever the repeat."""
    found = {}
    for rewards in ("step", "frame"):
        agent = agent_with(tasks=0, rewards=rewards)
        agent.add_task("cartpole_swingup", 2)
        found[rewards] = agent.update("cartpole_swingup", batch_for(agent))
    torch.testing.assert_close(found["frame"]["batch_reward"], found["step"]["batch_reward"] / 8)
    assert float(found["frame"]["q_target"]) != float(found["step"]["q_target"])
