"""Preset `drq` is DrQ: its losses and updates beside a plain re-writing of the algorithm, layer by layer.

One thing is ours: the actor reads the convolutions' output of the critic's pass, taken before the critic's step.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform

from ctrlformer.agents import SacAgent
from ctrlformer.config import EnvConfig, TransferConfig
from ctrlformer.config.presets import preset
from ctrlformer.replay import Batch

SIZE, B, ACTIONS, WIDTH = 20, 8, 2, 16
DISCOUNT, LEARNING_RATE, TAU = 0.99, 1e-3, 0.01


def drq_agent() -> SacAgent:
    config = preset("drq")
    small = replace(config.agent, head_width=WIDTH)
    exact = replace(config.training, precision="fp32")  # auto takes bf16 where the processor is quick at it
    return SacAgent(replace(config, env=EnvConfig(image_size=SIZE), agent=small, training=exact), seed=3)


def batch_for(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    shown, after = (torch.from_numpy(rng.integers(0, 256, (2, B, SIZE, SIZE, 9), dtype=np.uint8)) for _ in range(2))
    action = torch.from_numpy(rng.uniform(-1, 1, (B, ACTIONS)).astype(np.float32))
    reward = torch.from_numpy(rng.uniform(0, 1, B).astype(np.float32))
    return Batch(shown, action, reward, torch.full((B,), DISCOUNT), after)


class Critic(nn.Module):
    """Convolutions, projection and two Q functions, as one network with a target copy of all of it."""

    def __init__(self, agent: SacAgent) -> None:
        super().__init__()
        critic = agent.heads[0].critic
        self.conv = copy.deepcopy(agent.encoder.convolutions)
        self.head, self.norm = copy.deepcopy(critic.project[0]), copy.deepcopy(critic.project[1])  # type: ignore[index, union-attr]
        self.Q1, self.Q2 = copy.deepcopy(critic.q1), copy.deepcopy(critic.q2)  # type: ignore[union-attr]

    def convolve(self, obs: Tensor) -> Tensor:
        return self.conv(obs.permute(0, 3, 1, 2).float() / 255).flatten(1)  # type: ignore[operator, no-any-return]

    def forward(self, h: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([torch.tanh(self.norm(self.head(h))), action], -1)  # type: ignore[operator]
        return self.Q1(x)[:, 0], self.Q2(x)[:, 0]  # type: ignore[operator]


class Actor(nn.Module):
    """Its own projection of the critic's convolutions, then the policy."""

    def __init__(self, agent: SacAgent) -> None:
        super().__init__()
        actor = agent.heads[0].actor
        self.head, self.norm = copy.deepcopy(actor.project[0]), copy.deepcopy(actor.project[1])  # type: ignore[index, union-attr]
        self.trunk = copy.deepcopy(actor.trunk)  # type: ignore[union-attr]

    def forward(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_std = self.trunk(torch.tanh(self.norm(self.head(h)))).chunk(2, -1)  # type: ignore[operator]
        std = (-10 + 0.5 * 12 * (torch.tanh(log_std) + 1)).exp()
        u = mu + std * noise
        log_prob = Normal(mu, std).log_prob(u) - TanhTransform().log_abs_det_jacobian(u, torch.tanh(u))
        return torch.tanh(u), log_prob.sum(-1)


class PlainDrq:
    def __init__(self, agent: SacAgent) -> None:
        self.critic, self.actor = Critic(agent), Actor(agent)
        self.critic_target = copy.deepcopy(self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(0.1)))
        networks = (self.critic.parameters(), self.actor.parameters(), [self.log_alpha])
        self.optimizers = [torch.optim.Adam(parameters, lr=LEARNING_RATE) for parameters in networks]
        self.generator = torch.Generator().manual_seed(0)

    def noise(self, count: int) -> Tensor:
        return torch.randn(count, ACTIONS, generator=self.generator)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        (obs, obs_aug), (next_obs, next_obs_aug) = batch.observation, batch.next_observation
        alpha = self.log_alpha.exp()
        with torch.no_grad():
            noises = self.noise(2 * B).split(B)
            targets = []
            for view, noise in zip((next_obs, next_obs_aug), noises, strict=True):
                action, log_prob = self.actor(self.critic.convolve(view), noise)
                q1, q2 = self.critic_target(self.critic_target.convolve(view), action)
                targets.append(batch.reward + DISCOUNT * (torch.min(q1, q2) - alpha * log_prob))
            target = (targets[0] + targets[1]) / 2
        h = self.critic.convolve(obs)
        critic_loss = torch.zeros(())
        for features in (h, self.critic.convolve(obs_aug)):
            q1, q2 = self.critic(features, batch.action)
            critic_loss = critic_loss + F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.step(0, critic_loss)
        found = {"critic_loss": float(critic_loss.detach())}
        if step % 2 == 0:
            action, log_prob = self.actor(h.detach(), self.noise(B))
            actor_loss = (alpha.detach() * log_prob - torch.min(*self.critic(h.detach(), action))).mean()
            self.step(1, actor_loss)
            self.step(2, (self.log_alpha.exp() * (-log_prob + ACTIONS).detach()).mean())
            found["actor_loss"] = float(actor_loss.detach())
        else:
            with torch.no_grad():
                for old, new in zip(self.critic_target.parameters(), self.critic.parameters(), strict=True):
                    old.copy_(TAU * new + (1 - TAU) * old)
        return found

    def step(self, which: int, loss: Tensor) -> None:
        self.optimizers[which].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers[which].step()


def compared(agent: SacAgent, plain: PlainDrq) -> dict[str, tuple[nn.Module, nn.Module]]:
    heads = agent.heads[0]
    return {
        "convolutions": (agent.encoder.convolutions, plain.critic.conv),  # type: ignore[dict-item]
        "target convolutions": (agent.target_encoder.convolutions, plain.critic_target.conv),  # type: ignore[dict-item]
        "critic's projection": (heads.critic.project[0], plain.critic.head),  # type: ignore[dict-item, index, union-attr]
        "target's projection": (heads.target_critic.project[0], plain.critic_target.head),  # type: ignore[dict-item, index, union-attr]
        "actor's projection": (heads.actor.project[0], plain.actor.head),  # type: ignore[dict-item, index, union-attr]
        "policy": (heads.actor.trunk, plain.actor.trunk),  # type: ignore[dict-item, union-attr]
        "Q1": (heads.critic.q1, plain.critic.Q1),  # type: ignore[dict-item, union-attr]
        "target Q2": (heads.target_critic.q2, plain.critic_target.Q2),  # type: ignore[dict-item, union-attr]
    }


def test_losses_and_updates_are_those_of_a_plain_drq() -> None:
    agent = drq_agent()
    agent.add_task("task", ACTIONS)
    plain = PlainDrq(agent)
    starts = {name: copy.deepcopy(ours) for name, (ours, _) in compared(agent, plain).items()}
    agent.generator.manual_seed(0)
    for step in range(2):
        batch = batch_for(step)
        ours = {name: float(value) for name, value in agent.update("task", batch).items()}
        expected = plain.update(batch, step)
        assert {name: ours[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    for name, (ours, theirs) in compared(agent, plain).items():
        pairs = zip(ours.parameters(), theirs.parameters(), starts[name].parameters(), strict=True)
        for mine, other, start in pairs:
            assert not torch.equal(mine, start), name
            # Adam's first steps have the sign of the gradient: where that is rounding, so is the step.
            close = (mine - other).abs() < 0.02 * LEARNING_RATE
            assert float(close.float().mean()) > 0.98, name
    torch.testing.assert_close(agent.heads[0].log_temperature, plain.log_alpha, rtol=1e-3, atol=1e-5)  # type: ignore[union-attr]


def test_the_actors_projection_learns_from_the_actors_loss_alone() -> None:
    agent = drq_agent()
    agent.add_task("task", ACTIONS)
    agent.task_updates["task"] = 1  # the actor's turn is every second update
    actor = copy.deepcopy(agent.heads[0].actor)  # type: ignore[arg-type]
    critic = copy.deepcopy(agent.heads[0].critic)  # type: ignore[arg-type]
    agent.update("task", batch_for(0))
    now = agent.heads[0].state_dict()
    assert all(torch.equal(now[f"actor.{name}"], value) for name, value in actor.state_dict().items())
    assert not torch.equal(now["critic.project.0.weight"], critic.state_dict()["project.0.weight"])


def test_every_task_owns_its_projections_and_the_convolutions_are_shared() -> None:
    agent = drq_agent()
    agent.add_task("old", ACTIONS)
    agent.update("old", batch_for(0))
    agent.add_task("new", ACTIONS, TransferConfig(heads="copy"))
    old, new = (agent.heads[number].state_dict() for number in range(2))
    assert all(torch.equal(old[name], new[name]) for name in old if name != "log_temperature")
    before = {name: value.clone() for name, value in old.items()}
    shared = agent.encoder.convolutions[0].weight.detach().clone()  # type: ignore[index, union-attr]
    for seed in range(2):
        agent.update("new", batch_for(seed))
    assert all(torch.equal(agent.heads[0].state_dict()[name], value) for name, value in before.items())
    assert not torch.equal(agent.heads[1].state_dict()["actor.project.0.weight"], before["actor.project.0.weight"])
    assert not torch.equal(agent.encoder.convolutions[0].weight, shared)  # type: ignore[index, union-attr]
