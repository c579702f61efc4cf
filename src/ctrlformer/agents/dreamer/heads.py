"""What belongs to one task of Dreamer: reward model, value model, actor, and what an action means to the world."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.agents.dreamer.rssm import Gaussian
from ctrlformer.config.dreamer import DreamerConfig

LARGEST_MEAN = 5.0  # before tanh: further out tanh has no slope
SMALLEST_STD = 1e-4


def elu_mlp(inputs: int, width: int, outputs: int, hidden_layers: int) -> nn.Sequential:
    """`hidden_layers` of the same width with ELU, then a linear layer."""
    sizes = [inputs] + [width] * hidden_layers
    layers = nn.Sequential()
    for before, after in itertools.pairwise(sizes):
        layers.extend([nn.Linear(before, after), nn.ELU()])
    return layers.append(nn.Linear(width, outputs))


class ImaginingActor(nn.Module):
    """Equation 3: a tanh-Gaussian policy on latent states."""

    def __init__(self, config: DreamerConfig, features: int, action_dim: int) -> None:
        super().__init__()
        self.trunk = elu_mlp(features, config.head_width, 2 * action_dim, config.actor_layers)
        self._offset = math.log(math.expm1(config.initial_deviation))  # softplus of it is the first std

    def forward(self, features: Tensor) -> Gaussian:
        """(..., F) to the Gaussian before tanh, (..., A)."""
        mean, raw = self.trunk(features).chunk(2, dim=-1)
        mean = LARGEST_MEAN * torch.tanh(mean / LARGEST_MEAN)
        return Gaussian(mean, F.softplus(raw + self._offset) + SMALLEST_STD)

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Actions in [-1, 1], through which gradients pass; `noise` is standard normal (..., A)."""
        return torch.tanh(self(features).sample(noise))

    def mean_action(self, features: Tensor) -> Tensor:
        return torch.tanh(self(features).mean)


class DreamerHeads(nn.Module):
    def __init__(self, config: DreamerConfig, features: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.copied = False
        self.action_map = nn.Linear(action_dim, config.hidden, bias=False)
        self.reward = elu_mlp(features, config.head_width, 1, config.reward_layers)
        self.value = elu_mlp(features, config.head_width, 1, config.value_layers)
        self.actor = ImaginingActor(config, features, action_dim)

    def copy_actions_from(self, other: DreamerHeads) -> None:
        """Actions mean at first what they mean in another task: the part of the world model that a task owns."""
        self.action_map.load_state_dict(other.action_map.state_dict())

    def copy_from(self, other: DreamerHeads) -> None:
        """Start as another task's reward model, value model and actor."""
        for name in ("reward", "value", "actor"):
            getattr(self, name).load_state_dict(getattr(other, name).state_dict())
        self.copied = True
