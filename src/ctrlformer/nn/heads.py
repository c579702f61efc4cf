"""What reads a task's 50 features: actor, twin critics, predictor of the next ones; BYOL's projector and predictor."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.config import AgentConfig


def mlp(inputs: int, width: int, outputs: int, layers: int, norm: bool = False) -> nn.Sequential:
    """`layers` linear layers with ReLU between, initialised orthogonally as in DrQ; `norm` puts a LayerNorm
    before each ReLU."""
    sizes = [inputs] + [width] * (layers - 1) + [outputs]
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        linear = nn.Linear(before, after)
        nn.init.orthogonal_(linear.weight)
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.LayerNorm(after), nn.ReLU()] if norm else [linear, nn.ReLU()]
    return nn.Sequential(*parts[: -2 if norm else -1])  # nothing after the last linear layer


def feature_projection(inputs: int, outputs: int) -> nn.Sequential:
    """DrQ's way from convolutions to features: linear, LayerNorm, tanh."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(linear, nn.LayerNorm(outputs), nn.Tanh())


class Action(NamedTuple):
    action: Tensor  # (B, A), in [-1, 1]
    log_prob: Tensor  # (B,)


class Actor(nn.Module):
    """A tanh-Gaussian policy; with `projection` it projects the features to that width first."""

    def __init__(self, features: int, action_dim: int, config: AgentConfig, projection: int | None = None) -> None:
        super().__init__()
        self.log_std = (config.log_std_min, config.log_std_max)
        self.project = feature_projection(features, projection) if projection else nn.Identity()
        width = projection or features
        self.trunk = mlp(width, config.head_width, 2 * action_dim, config.head_layers, config.head_norm)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F) to mean and log std of the Gaussian before tanh, each (B, A)."""
        mean, raw = self.trunk(self.project(features)).chunk(2, dim=-1)
        low, high = self.log_std
        return mean, low + 0.5 * (high - low) * (torch.tanh(raw) + 1)

    def mean_action(self, features: Tensor) -> Tensor:
        return torch.tanh(self(features)[0])

    def sample(self, features: Tensor, noise: Tensor) -> Action:
        """Reparameterised: `noise` is standard normal (B, A), drawn by the caller's generator."""
        mean, log_std = self(features)
        u = mean + log_std.exp() * noise
        return Action(torch.tanh(u), tanh_gaussian_log_prob(noise, log_std, u))


def tanh_gaussian_log_prob(noise: Tensor, log_std: Tensor, u: Tensor) -> Tensor:
    """log p(tanh u) for u = mean + exp(log_std) noise, summed over actions: (B, A) to (B,).

    log(1 - tanh(u)^2) is written as 2 (log 2 - u - softplus(-2u)), which stays finite for large u.
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return (gaussian - squash).sum(-1)


class Critic(nn.Module):
    """Two Q functions of (features, action), for clipped double Q-learning; with `projection` both read the features
    projected to that width."""

    def __init__(self, features: int, action_dim: int, config: AgentConfig, projection: int | None = None) -> None:
        super().__init__()
        self.project = feature_projection(features, projection) if projection else nn.Identity()
        inputs = (projection or features) + action_dim
        self.q1 = mlp(inputs, config.head_width, 1, config.head_layers, config.head_norm)
        self.q2 = mlp(inputs, config.head_width, 1, config.head_layers, config.head_norm)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F), (B, A) to two (B,): squeezed here, so that no loss can broadcast (B,) against (B, 1)."""
        x = torch.cat([self.project(features), action], dim=-1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


class Predictor(nn.Module):
    """From features and action to the next step's features and the step's reward."""

    def __init__(self, features: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.change = mlp(features + action_dim, hidden, features, layers=3, norm=True)
        self.following = nn.Linear(features, features)
        self.reward = mlp(features + action_dim, hidden, 1, layers=3, norm=True)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F), (B, A) to the next features (B, F) and the reward (B,), both standardised."""
        x = torch.cat([features, action], dim=-1)
        following: Tensor = self.following(features + self.change(x))
        return following, self.reward(x).squeeze(-1)


def projector(inputs: int, hidden: int, outputs: int, ends_in_norm: bool = False) -> nn.Sequential:
    """BYOL's map, also its predictor: linear, batch norm, ReLU, linear."""
    parts = [nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    if ends_in_norm:
        parts.append(nn.BatchNorm1d(outputs))
    return nn.Sequential(*parts)
