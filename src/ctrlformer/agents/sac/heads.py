"""What an agent has beside its encoder: every task's own heads, and the contrastive ones of all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ctrlformer.config import AgentConfig
from ctrlformer.nn.ema import frozen_copy
from ctrlformer.nn.heads import Actor, Critic, Predictor, feature_projection, projector


class TaskHeads(nn.Module):
    """What belongs to one task alone: actor, critics, target critics, temperature, and if wanted a predictor."""

    def __init__(self, config: AgentConfig, features: int, action_dim: int, projection: int | None = None) -> None:
        """`features` is what the encoder gives; `projection` is the width to which actor and critics project it, and
        the last actions with it."""
        super().__init__()
        self.action_dim = action_dim
        self._past = config.past_actions * action_dim
        features += self._past
        self.copied = False
        self.learns_temperature = config.learn_temperature
        self.actor = Actor(features, action_dim, config, projection)
        self.critic = Critic(features, action_dim, config, projection)
        self.target_critic = frozen_copy(self.critic)
        hidden, width = config.prediction_hidden, projection or features
        self.predictor = Predictor(width, action_dim, hidden) if config.prediction else None
        self.log_temperature = nn.Parameter(torch.tensor(config.init_temperature).log())
        self.target_entropy = -float(action_dim) if config.target_entropy is None else config.target_entropy

    def with_past(self, features: Tensor, past: Tensor | None = None) -> Tensor:
        """Features (..., B, F) and behind them the last actions (B, K * A), zeros where these are not known: what the
        networks here read. Frames tell a speed only up to what the last action has changed of it."""
        if not self._past:
            return features
        if past is None:
            past = features.new_zeros(self._past)
        return torch.cat([features, past.expand(*features.shape[:-1], self._past)], dim=-1)

    def copy_from(self, other: TaskHeads) -> None:
        """Start as another task's actor, critics and predictor. The temperature stays new, so the copy explores."""
        for name in ("actor", "critic", "target_critic", "predictor"):
            if getattr(self, name) is not None:
                getattr(self, name).load_state_dict(getattr(other, name).state_dict())
        self.copied = True

    def fix_temperature(self, temperature: float) -> None:
        """Hold the temperature at this value."""
        self.learns_temperature = False
        with torch.no_grad():
            self.log_temperature.fill_(math.log(temperature))


class Contrast(nn.Module):
    """BYOL's projector and predictor; with `projection` the projector begins with one more map to that width."""

    def __init__(self, config: AgentConfig, inputs: int, projection: int | None = None) -> None:
        super().__init__()
        hidden, outputs = config.projector_hidden, config.projector_dim
        self.project = projector(projection or inputs, hidden, outputs, config.projector_ends_in_norm)
        if projection:
            self.project.insert(0, feature_projection(inputs, projection))
        self.predict = projector(outputs, hidden, outputs)
