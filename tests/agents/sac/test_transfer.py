"""What happens to an agent when it takes up one more task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctrlformer.agents import SacAgent
from ctrlformer.agents.base import TransferSource
from ctrlformer.agents.sac import losses
from ctrlformer.config import Config, TransferConfig
from ctrlformer.config.presets import preset
from ctrlformer.replay import Batch
from ctrlformer.replay.rehearsal import Rehearsal

TINY = preset("tiny")
PLAIN = TransferConfig()
B = 4


def agent_for(config: Config = TINY, **settings: Any) -> SacAgent:
    return SacAgent(replace(config, agent=replace(config.agent, **settings)), seed=3)


def with_attention(kind: Any, base: Config = TINY) -> Config:
    return replace(base, encoder=replace(base.encoder, task_attention=kind))


def frames(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (*shape, 84, 84, 9), dtype=np.uint8))


def batch_for(agent: SacAgent, task: str, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    views, next_views = agent.views
    return Batch(
        frames(views, B, seed=seed),
        torch.from_numpy(rng.uniform(-1, 1, (B, agent.action_dims[task])).astype(np.float32)),
        torch.from_numpy(rng.uniform(0, 1, B).astype(np.float32)),
        torch.full((B,), 0.97),
        frames(next_views, B, seed=seed + 100),
    )


def learn(agent: SacAgent, task: str, updates: int = 2) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = {}
    for number in range(updates):
        metrics |= agent.update(task, batch_for(agent, task, number))
    return metrics


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    now = module.state_dict()
    return {name for name, tensor in before.items() if not torch.equal(tensor, now[name])}


def two_tasks(transfer: TransferConfig = PLAIN, config: Config = TINY, **settings: Any) -> SacAgent:
    agent = agent_for(config, **settings)
    agent.add_task("old", 2)
    learn(agent, "old")
    agent.add_task("new", 2, transfer)
    return agent


# The released code's bugs: ours never had them


@pytest.mark.parametrize("transfer", [PLAIN, TransferConfig(heads="copy"), TransferConfig(protect="freeze")])
@pytest.mark.parametrize("attention", ["joint", "causal"])
def test_the_new_token_and_its_temperature_learn_from_the_first_update(
    transfer: TransferConfig, attention: str
) -> None:
    agent = two_tasks(transfer, with_attention(attention))
    encoder, heads = weights(agent.encoder), weights(agent.heads)
    agent.task_updates["new"] = 0  # so that the next update is one of the actor's
    learn(agent, "new", 1)
    assert "policy_tokens.1" in changed(encoder, agent.encoder)
    assert "1.log_temperature" in changed(heads, agent.heads)
    assert any(name.startswith("1.actor") for name in changed(heads, agent.heads))


@pytest.mark.parametrize("heads", ["fresh", "copy"])
def test_a_new_task_replaces_nothing_old(heads: Any) -> None:
    agent = agent_for(target_encoder="ema")
    agent.add_task("old", 2)
    learn(agent, "old", 3)
    modules = {"encoder": agent.encoder, "target": agent.target_encoder, "heads": agent.heads}
    before = {name: weights(module) for name, module in modules.items()}
    same = {name: {key: id(p) for key, p in module.named_parameters()} for name, module in modules.items()}
    moments = {name: tensor.clone() for name, tensor in agent.critic_optimiser.tensors().items()}
    agent.add_task("new", 2, TransferConfig(heads=heads))
    for name, module in modules.items():
        after = {key: id(p) for key, p in module.named_parameters()}
        assert same[name].items() <= after.items()
        statistics = {key for key in before[name] if key.startswith("statistics")}  # these grow by a row
        assert changed(before[name], module) <= statistics
    assert dict.fromkeys(moments, True) == {
        name: torch.equal(tensor, agent.critic_optimiser.tensors()[name]) for name, tensor in moments.items()
    }


def test_the_byol_target_is_not_the_online_network() -> None:
    agent = two_tasks(config=TINY, target_encoder="ema", contrastive=True)
    metrics = learn(agent, "new", 3)
    assert "contrastive_loss" in metrics
    assert changed(weights(agent.encoder), agent.byol_encoder)
    assert changed(weights(agent.contrast.project), agent.byol_projector)
    assert torch.equal(
        agent.encoder.state_dict()["statistics.mean"], agent.byol_encoder.state_dict()["statistics.mean"]
    )


# Tokens, rates, heads


def test_the_new_token_starts_as_the_previous_ones_copy() -> None:
    agent = two_tasks()
    tokens = weights(agent.encoder)
    assert torch.equal(tokens["policy_tokens.0"], tokens["policy_tokens.1"])
    agent.add_task("newer", 1, PLAIN)
    learn(agent, "new", 2)
    agent.add_task("newest", 1, PLAIN)
    tokens = weights(agent.encoder)
    assert torch.equal(tokens["policy_tokens.2"], tokens["policy_tokens.3"])
    assert not torch.equal(tokens["policy_tokens.1"], tokens["policy_tokens.0"])


def test_tasks_learnt_together_start_from_different_tokens() -> None:
    agent = agent_for()
    agent.add_task("one", 2)
    agent.add_task("two", 2)
    tokens = weights(agent.encoder)
    assert not torch.equal(tokens["policy_tokens.0"], tokens["policy_tokens.1"])


def rates(agent: SacAgent) -> dict[int, float]:
    return {id(p): group["lr"] for group in agent.critic_optimiser.param_groups for p in group["params"]}


def test_the_encoder_learns_slowly_after_the_first_stage_and_no_slower_later() -> None:
    agent = agent_for(learning_rate=1e-2, late_learning_rate=None)
    agent.add_task("first", 2)
    learn(agent, "first", 1)
    assert {rates(agent)[id(p)] for p in agent.encoder.parameters()} == {1e-2}
    for number, scale in enumerate((0.05, 0.04), start=2):
        agent.add_task(f"number{number}", 2, TransferConfig(encoder_lr_scale=scale))
        learn(agent, f"number{number}", 1)
        found = rates(agent)
        *old, new = agent.encoder.policy_tokens  # type: ignore[misc]
        slow = [p for p in agent.encoder.parameters() if p is not new]
        assert {round(found[id(p)], 9) for p in slow} == {round(scale * 1e-2, 9)}
        assert len(old) == number - 1
        assert found[id(new)] == 1e-2
        assert {found[id(p)] for p in agent.heads[-1].critic.parameters()} == {1e-2}  # type: ignore[union-attr]


def test_copied_heads_act_like_the_old_ones_and_explore_anew() -> None:
    agent = two_tasks(TransferConfig(heads="copy"))
    old, new = weights(agent.heads[0]), weights(agent.heads[1])
    for name in old:
        assert torch.equal(old[name], new[name]) == (name != "log_temperature"), name
    assert agent.has_copied_heads("new")
    assert not agent.has_copied_heads("old")
    learn(agent, "new")
    assert not changed(old, agent.heads[0])
    assert changed(new, agent.heads[1])


def test_a_copied_policy_acts_like_the_old_one_before_it_has_learnt_anything() -> None:
    """Which takes the old task's pixel statistics as well: the new task has no batch of its own yet."""
    agent = two_tasks(TransferConfig(heads="copy"), with_attention("causal"))
    for observation in frames(4, seed=7).numpy():
        old, new = (agent.policy(task, explore=False)(observation) for task in ("old", "new"))
        assert np.abs(old - new).max() < 0.1  # but for the old token, which the new one sees


def test_heads_are_copied_from_the_newest_task_with_as_many_actions() -> None:
    agent = two_tasks()  # both have 2 actions
    agent.add_task("other", 3, TransferConfig(heads="copy"))
    assert not agent.has_copied_heads("other")
    learn(agent, "other")
    agent.add_task("again", 2, TransferConfig(heads="copy"))
    assert torch.equal(weights(agent.heads[3])["actor.trunk.0.weight"], weights(agent.heads[1])["actor.trunk.0.weight"])


def test_fresh_heads_are_new() -> None:
    agent = two_tasks()
    assert not torch.equal(weights(agent.heads[0])["critic.q1.0.weight"], weights(agent.heads[1])["critic.q1.0.weight"])
    assert not agent.has_copied_heads("new")


def test_sixteen_tasks_with_different_actions_live_in_one_agent() -> None:
    sizes = [1, 2, 2, 6] * 4
    agent = agent_for(with_attention("causal"), batch_size=B)
    for number, size in enumerate(sizes):
        agent.add_task(f"task{number}", size, TransferConfig(heads="copy") if number else None)
        learn(agent, f"task{number}", 1)
    pixels = frames(1)[0].numpy()
    actions = [agent.policy(task, explore=False)(pixels) for task in agent.tasks]
    assert [len(action) for action in actions] == sizes
    again = agent_for(with_attention("causal"), batch_size=B)
    for number, size in enumerate(sizes):
        again.add_task(f"task{number}", size, TransferConfig(heads="copy") if number else None)
    again.load_tensors(agent.tensors())
    for task, action in zip(agent.tasks, actions, strict=True):
        assert np.array_equal(again.policy(task, explore=False)(pixels), action)


@pytest.mark.parametrize("name", ["drq", "drq_contrastive", "official", "paper"])
def test_every_preset_can_take_up_a_task(name: str) -> None:
    config = preset(name)
    small = replace(
        config,
        encoder=replace(config.encoder, dim=16, heads=2, blocks_per_stage=1, feature_dim=8),
        agent=replace(config.agent, head_width=16, projector_hidden=8, projector_dim=4),
    )
    for protect in ("none", "freeze"):
        agent = agent_for(small)
        agent.add_task("old", 1)
        learn(agent, "old", 1)
        agent.add_task("new", 3, TransferConfig(protect=protect))  # type: ignore[arg-type]
        learn(agent, "new", 2)


# Keeping the old tasks


def test_freezing_trains_the_new_token_and_heads_only() -> None:
    agent = two_tasks(TransferConfig(protect="freeze"), target_encoder="ema", contrastive=True)
    before = {"encoder": weights(agent.encoder), "contrast": weights(agent.contrast), "heads": weights(agent.heads)}
    metrics = learn(agent, "new", 3)
    assert "contrastive_loss" not in metrics
    learnt = {name for name in changed(before["encoder"], agent.encoder) if not name.startswith("statistics")}
    assert learnt == {"policy_tokens.1"}
    assert not changed(before["contrast"], agent.contrast)
    assert {name[0] for name in changed(before["heads"], agent.heads)} == {"1"}


def test_causal_and_frozen_old_actions_are_bit_identical_after_any_number_of_stages() -> None:
    agent = agent_for(with_attention("causal"))
    pixels = frames(6, seed=9).numpy()
    known: dict[str, list[np.ndarray]] = {}
    for number in range(5):
        task = f"task{number}"
        agent.add_task(task, 1 + number % 3, TransferConfig(protect="freeze") if number else None)
        learn(agent, task, 4)
        policy = agent.policy(task, explore=False)
        known[task] = [policy(observation) for observation in pixels]
    for task, actions in known.items():
        policy = agent.policy(task, explore=False)
        assert all(np.array_equal(policy(o), action) for o, action in zip(pixels, actions, strict=True)), task


def test_without_protection_old_actions_do_change() -> None:
    agent = agent_for(with_attention("causal"))
    agent.add_task("old", 1)
    learn(agent, "old", 4)
    pixels = frames(1)[0].numpy()
    before = agent.policy("old", explore=False)(pixels)
    agent.add_task("new", 1, PLAIN)
    learn(agent, "new", 4)
    assert not np.array_equal(agent.policy("old", explore=False)(pixels), before)


def test_after_a_frozen_stage_the_encoder_can_learn_again() -> None:
    agent = two_tasks(TransferConfig(protect="freeze"))
    agent.add_task("newer", 2, PLAIN)
    before = weights(agent.encoder)
    learn(agent, "newer")
    assert "stages.0.0.mlp.0.weight" in changed(before, agent.encoder)


def test_rehearsing_pulls_the_old_outputs_back_and_leaves_old_heads_alone() -> None:
    agent = two_tasks(TransferConfig(protect="rehearse", rehearsal_weight=100.0), with_attention("causal"))
    pixels = frames(8, seed=5)
    outputs = agent.outputs("old", pixels)
    spread = outputs.features.std(0).mean()
    rehearsal = Rehearsal("old", pixels, outputs, spread)
    heads = weights(agent.heads[0])
    figures = [
        float(agent.update("new", batch_for(agent, "new", number), 0.0, rehearsal)["rehearsal_loss"])
        for number in range(30)
    ]
    assert figures[0] == 0.0  # nothing has moved yet
    assert max(figures) > 0
    assert not changed(heads, agent.heads[0])
    assert all(p.requires_grad for p in agent.heads[0].actor.parameters())  # type: ignore[union-attr]
    assert np.isfinite(figures).all()


def drift_after_learning(protect: str, reward_scale: float) -> float:
    """How far an old task's features move in 60 updates of a new task at the encoder's full rate."""
    transfer = TransferConfig(protect=protect, encoder_lr_scale=1.0)  # type: ignore[arg-type]
    agent = two_tasks(transfer, with_attention("causal"), contrastive=False)
    pixels = frames(8, seed=5)
    outputs = agent.outputs("old", pixels)
    rehearsal = Rehearsal("old", pixels, outputs, outputs.features.std(0).mean())
    for number in range(60):
        batch = batch_for(agent, "new", number)
        batch = batch._replace(reward=reward_scale * batch.reward)
        agent.update("new", batch, 0.0, rehearsal if protect == "rehearse" else None)
    moved = agent.outputs("old", pixels).features
    return float(losses.squared_drift(moved, outputs.features, rehearsal.spread).sqrt())


def test_large_rewards_do_not_pull_old_outputs_away() -> None:
    """The critic's loss grows with the square of the rewards: a fixed weight beside it would hold nothing."""
    assert drift_after_learning("rehearse", 1000.0) < 0.1 * drift_after_learning("none", 1000.0)


# One source for everything copied, and statistics that do not jump


def test_token_statistics_and_heads_come_from_one_task() -> None:
    """After A with 1 action and B with 2, C with 1 takes A's token, statistics and heads: not B's token, A's heads."""
    agent = agent_for(target_encoder="ema")
    agent.add_task("A", 1)
    learn(agent, "A", 3)
    agent.add_task("B", 2, TransferConfig(heads="copy"))
    learn(agent, "B", 3)
    agent.add_task("C", 1, TransferConfig(heads="copy"))
    online = weights(agent.encoder)
    assert not torch.equal(online["policy_tokens.0"], online["policy_tokens.1"])
    for encoder in (online, weights(agent.target_encoder), weights(agent.byol_encoder)):
        assert torch.equal(encoder["policy_tokens.2"], online["policy_tokens.0"])
        assert torch.equal(encoder["statistics.mean"][2], online["statistics.mean"][0])
    assert torch.equal(weights(agent.heads[2])["actor.trunk.0.weight"], weights(agent.heads[0])["actor.trunk.0.weight"])


def test_without_heads_to_copy_the_previous_task_is_the_source() -> None:
    agent = two_tasks()
    learn(agent, "new", 3)
    agent.add_task("other", 3, TransferConfig(heads="copy"))
    encoder = weights(agent.encoder)
    assert torch.equal(encoder["policy_tokens.2"], encoder["policy_tokens.1"])
    assert torch.equal(encoder["statistics.mean"][2], encoder["statistics.mean"][1])


def still_frames(seed: int, count: int = 64) -> Tensor:
    """A still background with a bright square that is somewhere else in every observation, as a camera sees a robot."""
    rng = np.random.default_rng(seed)
    background = np.random.default_rng(0).integers(60, 120, (84, 84, 9), dtype=np.uint8)
    shown = np.repeat(background[None], count, 0)
    for picture, (y, x) in zip(shown, rng.integers(0, 64, (count, 2)), strict=True):
        picture[y : y + 20, x : x + 20] = 255
    return torch.from_numpy(shown)


@pytest.mark.parametrize("heads", ["fresh", "copy"])
def test_features_of_the_source_task_hardly_move_in_the_first_update(heads: Any) -> None:
    """With the encoder at the learning rate of a later stage; the pixel statistics must not start anew."""
    agent = agent_for(contrastive=False)
    agent.add_task("old", 2)
    for number in range(60):
        picked = still_frames(number, B)
        agent.update("old", batch_for(agent, "old", number)._replace(observation=picked[None]))
    held_out = still_frames(seed=999)
    agent.add_task("new", 2, TransferConfig(heads=heads))
    before = agent.outputs("new", held_out).features
    agent.update("new", batch_for(agent, "new", 5)._replace(observation=still_frames(5, B)[None]))
    after = agent.outputs("new", held_out).features
    moved = (after - before).square().mean().sqrt() / before.var(0).mean().sqrt()
    assert float(moved) < 0.1


# The released code's way of transfer, setting by setting


def test_a_token_that_is_not_trained_stays_its_sources_copy_in_later_stages_too() -> None:
    agent = two_tasks(TransferConfig(train_token=False))
    token = weights(agent.encoder)["policy_tokens.1"]
    learn(agent, "new", 3)
    agent.add_task("newer", 2, PLAIN)
    learn(agent, "newer", 3)
    after = weights(agent.encoder)
    assert torch.equal(after["policy_tokens.1"], token)
    assert not torch.equal(after["policy_tokens.2"], token)


def test_a_fixed_temperature_is_not_trained() -> None:
    agent = two_tasks(TransferConfig(temperature=1e-4))
    learn(agent, "new", 4)
    found = [float(heads.log_temperature.exp().detach()) for heads in agent._all_heads]
    assert found[1] == pytest.approx(1e-4)
    assert found[0] != pytest.approx(TINY.agent.init_temperature, rel=1e-6), "the first task's is learned"


# Where a task starts, and its warm-up


def three_tasks(source: TransferSource) -> SacAgent:
    """A and B have learnt, C starts from `source`."""
    agent = agent_for()
    for task in ("A", "B"):
        agent.add_task(task, 2, PLAIN if agent.tasks else None)
        learn(agent, task, 3)
    agent.add_task("C", 2, PLAIN, source)
    return agent


@pytest.mark.parametrize("heads", [True, False])
def test_a_task_starts_from_the_given_source_whatever_came_before(heads: bool) -> None:
    agent = three_tasks(TransferSource("A", heads))
    encoder, of_heads = weights(agent.encoder), weights(agent.heads)
    assert torch.equal(encoder["policy_tokens.2"], encoder["policy_tokens.0"])
    assert not torch.equal(encoder["policy_tokens.1"], encoder["policy_tokens.0"])
    assert torch.equal(encoder["statistics.mean"][2], encoder["statistics.mean"][0])
    name = "actor.trunk.0.weight"
    assert torch.equal(of_heads[f"2.{name}"], of_heads[f"0.{name}"]) == agent.has_copied_heads("C") == heads


def test_without_a_source_all_is_new() -> None:
    agent = three_tasks(TransferSource(None, heads=False))
    encoder = weights(agent.encoder)
    assert not any(torch.equal(encoder["policy_tokens.2"], encoder[f"policy_tokens.{old}"]) for old in (0, 1))
    assert bool((encoder["statistics.mean"][2] == 127.5).all())


@pytest.mark.parametrize("encoder", ["ctrlformer", "places", "conv", "cnn"])
def test_in_the_warm_up_critics_learn_alone_at_a_rising_rate(encoder: Any) -> None:
    config = replace(TINY, encoder=replace(TINY.encoder, kind=encoder))
    agent = two_tasks(TransferConfig(heads="copy", warmup_updates=3), config, actor_every=1, late_learning_rate=None)
    encoders, heads = weights(agent.encoder), weights(agent.heads)
    found = []
    for number in range(3):
        metrics = agent.update("new", batch_for(agent, "new", number))
        found += [rates(agent)[id(p)] / agent.settings.learning_rate for p in agent.heads[1].critic.parameters()][:1]  # type: ignore[union-attr]
        assert "actor_loss" not in metrics
    assert found == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert all(name.startswith("statistics") for name in changed(encoders, agent.encoder))
    assert changed(heads, agent.heads)
    assert all(name.startswith(("1.critic", "1.target_critic", "1.predictor")) for name in changed(heads, agent.heads))
    assert "actor_loss" in agent.update("new", batch_for(agent, "new", 3))
    assert any(name.startswith("1.actor") for name in changed(heads, agent.heads))
    assert not all(name.startswith("statistics") for name in changed(encoders, agent.encoder))


def test_new_heads_have_no_warm_up() -> None:
    agent = two_tasks(TransferConfig(warmup_updates=3), actor_every=1, late_learning_rate=None)
    assert "actor_loss" in learn(agent, "new", 1)
    assert set(rates(agent).values()) == {agent.settings.learning_rate, 0.05 * agent.settings.learning_rate}
