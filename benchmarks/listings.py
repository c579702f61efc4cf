"""One update as the paper's Listings 2 and 3 write it: an encoder pass for every call, eager, plain optimisers.

The losses are ours, switch for switch; tests/benchmarks/test_listings.py holds losses and gradients against ours, so
that the speed table compares two ways to compute the same.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.listing_networks import ListingActor, ListingCritic, make_listing_encoder, make_projector
from ctrlformer.agents import SacAgent
from ctrlformer.config import Config
from ctrlformer.replay import Batch

Weights = Mapping[str, Tensor]


class StackedBatch(NamedTuple):
    """A batch as it lies in most replays: stacked bytes with channels first, one tensor per view."""

    obs: list[Tensor]  # V x uint8 (B, C, H, W)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,)
    discount: Tensor  # (B,)
    next_obs: list[Tensor]  # W x uint8 (B, C, H, W)

    @classmethod
    def of(cls, batch: Batch) -> StackedBatch:
        def channels_first(views: object) -> list[Tensor]:
            return [view.permute(0, 3, 1, 2).contiguous() for view in torch.as_tensor(views)]

        return cls(
            channels_first(batch.observation),
            torch.as_tensor(batch.action),
            torch.as_tensor(batch.reward),
            torch.as_tensor(batch.discount),
            channels_first(batch.next_observation),
        )


class ListingsAgent:
    """Starts with the weights of one of our agents and its first task, and updates them as the listings do."""

    def __init__(self, ours: SacAgent, action_dim: int) -> None:
        config = ours.config
        self.config, self.settings = config, config.agent
        self.encoder = make_listing_encoder(config)
        features, projection = self.encoder.features, self.encoder.projection
        self.actor = ListingActor(features, action_dim, self.settings, projection)
        self.critic = ListingCritic(features, action_dim, self.settings, projection)
        self.project = make_projector(self.encoder.contrastive_dim, self.settings, projection)
        self.predict = make_projector(self.settings.projector_dim, self.settings)
        self.log_alpha = nn.Parameter(torch.tensor(self.settings.init_temperature).log())
        wanted = self.settings.target_entropy
        self.target_entropy = -float(action_dim) if wanted is None else wanted
        self.updates = 0
        self._take_weights(ours.tensors())
        self.target_encoder = copy.deepcopy(self.encoder) if self.settings.target_encoder == "ema" else self.encoder
        own_target = self.settings.contrastive and self.settings.contrastive_target == "ema"
        self.byol_encoder = copy.deepcopy(self.encoder) if own_target else self.encoder
        self.byol_project = copy.deepcopy(self.project) if own_target else self.project
        self.target_critic = copy.deepcopy(self.critic)
        self._make_optimisers()

    def _take_weights(self, saved: Mapping[str, Weights]) -> None:
        self.encoder.load_state_dict({**self.encoder.state_dict(), **encoder_weights(saved["encoder"], self.config)})
        heads, contrast = saved["heads"], saved["contrast"]
        self.actor.load_state_dict(_below("0.actor.", heads))
        self.critic.load_state_dict(_below("0.critic.", heads))
        self.project.load_state_dict(_below("project.", contrast))
        self.predict.load_state_dict(_below("predict.", contrast))

    def _make_optimisers(self) -> None:
        s = self.settings
        named = list(self.encoder.named_parameters())
        decays = {name for name, p in named if p.ndim > 1 and "position" not in name}
        rest = [p for name, p in named if name not in decays]
        for part in (self.project, self.predict, self.critic):
            rest += part.parameters()
        groups = [
            {"params": [p for name, p in named if name in decays], "weight_decay": s.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        self.critic_optimizer = torch.optim.AdamW(groups, lr=s.learning_rate)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=s.learning_rate)
        self.log_alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=s.learning_rate)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()

    def update(self, batch: StackedBatch) -> dict[str, float]:
        obs = [view.float() for view in batch.obs]
        next_obs = [view.float() for view in batch.next_obs]
        self.encoder.observe(obs[0])
        metrics = self.update_critic_and_encoder(obs, batch, next_obs)
        if self.updates % self.settings.actor_every == 0:
            metrics |= self.update_actor_and_alpha(obs[0])
        self.update_targets()
        self.updates += 1
        return metrics

    def update_actor_and_alpha(self, obs: Tensor) -> dict[str, float]:
        """Listing 2. The encoder runs once for the actor and once for the critic, each time detached."""
        dist = self.actor(self.encoder(obs)[0].detach())
        action = dist.rsample()
        log_prob = dist.log_prob(action).sum(-1)
        q1, q2 = self.critic(self.encoder(obs)[0].detach(), action)
        actor_loss = (self.alpha.detach() * log_prob - torch.min(q1, q2)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        self.log_alpha_optimizer.zero_grad()
        alpha_loss = (self.alpha * (-log_prob - self.target_entropy).detach()).mean()
        alpha_loss.backward()
        self.log_alpha_optimizer.step()
        return {"actor_loss": actor_loss.item(), "entropy": -log_prob.mean().item(), "alpha_loss": alpha_loss.item()}

    def update_critic_and_encoder(
        self, obs: list[Tensor], batch: StackedBatch, next_obs: list[Tensor]
    ) -> dict[str, float]:
        """Listing 3."""
        metrics = {}
        loss = torch.zeros(())
        if self.settings.contrastive:
            cons = self.byol_project(self.byol_encoder(obs[1])[1]).detach()
            predicted = self.predict(self.project(self.encoder(obs[0])[1]))
            cons_loss = (2 - 2 * F.cosine_similarity(predicted, cons, dim=-1)).mean()
            metrics["contrastive_loss"] = cons_loss.item()
            loss = loss + self.settings.contrastive_weight * cons_loss
        with torch.no_grad():
            target_q = torch.stack([self._target_q(view, batch) for view in next_obs]).mean(0)  # (B,)
        critic_loss = q = torch.zeros(())
        views = obs[: 2 if self.settings.q_regularisation else 1]
        for view in views:
            q1, q2 = self.critic(self.encoder(view)[0], batch.action)
            critic_loss = critic_loss + F.mse_loss(q1, target_q) + F.mse_loss(q2, target_q)
            q = q + q1.detach().mean() / len(views)
        metrics |= {
            "critic_loss": critic_loss.item(),
            "q": q.item(),
            "batch_reward": batch.reward.mean().item(),
        }
        self.critic_optimizer.zero_grad()
        (loss + critic_loss).backward()  # type: ignore[no-untyped-call]
        self.critic_optimizer.step()
        return metrics

    def _target_q(self, next_obs: Tensor, batch: StackedBatch) -> Tensor:
        dist = self.actor(self.encoder(next_obs)[0])
        next_action = dist.rsample()
        log_prob = dist.log_prob(next_action).sum(-1)
        q1, q2 = self.target_critic(self.target_encoder(next_obs)[0], next_action)
        target_v = torch.min(q1, q2) - self.alpha.detach() * log_prob
        target_q: Tensor = batch.reward + batch.discount * target_v
        return target_q

    def update_targets(self) -> None:
        s = self.settings
        if (self.updates + 1) % s.target_every == 0:
            soft_update(self.critic, self.target_critic, s.critic_tau)
            if self.target_encoder is not self.encoder:
                soft_update(self.encoder, self.target_encoder, s.critic_tau)
        if self.byol_encoder is not self.encoder:
            soft_update(self.encoder, self.byol_encoder, 1 - s.byol_momentum)
            soft_update(self.project, self.byol_project, 1 - s.byol_momentum)


@torch.no_grad()
def soft_update(online: nn.Module, target: nn.Module, tau: float) -> None:
    """One parameter after the other, as everyone writes it."""
    for new, old in zip(online.parameters(), target.parameters(), strict=True):
        old.copy_(tau * new + (1 - tau) * old)
    for seen, kept in zip(online.buffers(), target.buffers(), strict=True):
        kept.copy_(seen)


def encoder_weights(ours: Weights, config: Config) -> dict[str, Tensor]:
    """Our encoder's weights under the listings' names and in their layouts."""
    renamed = {"policy_tokens.0": "policy_token", "embed.linear.bias": "stem.0.bias"}
    patch = config.encoder.patch_size
    taken = {}
    for name, value in ours.items():
        if name == "embed.linear.weight":  # (D, p * p * C)
            taken["stem.0.weight"] = value.view(len(value), patch, patch, -1).permute(0, 3, 1, 2)
        elif name == "statistics.mean":  # (K, H, W, C)
            taken["mean"] = value[0].permute(2, 0, 1)
        elif name.startswith("statistics."):  # (K,)
            taken[name.removeprefix("statistics.")] = value[0]
        elif name.startswith("tail.layers."):  # behind the patch convolution
            number, _, rest = name.removeprefix("tail.layers.").partition(".")
            taken[f"stem.{int(number) + 1}.{rest}"] = value
        else:
            taken[renamed.get(name, name)] = value
    return taken


def _below(prefix: str, weights: Weights) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
