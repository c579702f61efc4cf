"""What an agent has beside its encoder: every task's own heads, and the contrastive ones of all."""

from __future__ import annotations

import torch
from torch import nn

from ctrlformer.config import AgentConfig
from ctrlformer.nn.ema import frozen_copy
from ctrlformer.nn.heads import Actor, Critic, projector


class TaskHeads(nn.Module):
    """What belongs to one task alone: actor, critics, target critics, temperature."""

    def __init__(self, config: AgentConfig, features: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.copied = False
        self.actor = Actor(features, action_dim, config)
        self.critic = Critic(features, action_dim, config)
        self.target_critic = frozen_copy(self.critic)
        self.log_temperature = nn.Parameter(torch.tensor(config.init_temperature).log())
        self.target_entropy = -float(action_dim) if config.target_entropy is None else config.target_entropy

    def copy_from(self, other: TaskHeads) -> None:
        """Start as another task's actor and critics; the temperature stays new, so that the copy explores."""
        for name in ("actor", "critic", "target_critic"):
            getattr(self, name).load_state_dict(getattr(other, name).state_dict())
        self.copied = True


class Contrast(nn.Module):
    """BYOL's projector and predictor."""

    def __init__(self, config: AgentConfig, inputs: int) -> None:
        super().__init__()
        hidden, outputs = config.projector_hidden, config.projector_dim
        self.project = projector(inputs, hidden, outputs, config.projector_ends_in_norm)
        self.predict = projector(outputs, hidden, outputs)
