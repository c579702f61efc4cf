"""Encoders whose one feature vector serves every task: all that is a task's own are its heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctrlformer.encoders.contract import Encoder, Tokens


class SharedHeadEncoder(Encoder):
    """Ends in linear, LayerNorm, tanh. Subclasses call `make_head` last, and `tokens` from `encode`."""

    tasks = 0

    def make_head(self, inputs: int) -> None:
        """The end of the encoder; then everything gets DrQ's initial weights."""
        self.head = nn.Linear(inputs, self.config.feature_dim)
        self.norm = nn.LayerNorm(self.config.feature_dim)
        self.contrastive_dim = self.config.feature_dim
        self.apply(_orthogonal)

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        self.tasks += 1
        return super().add_task(copy_from)

    def tokens(self, x: Tensor) -> Tokens:
        """(B, inputs) to the same features for every task."""
        features = self.norm(self.head(x))  # (B, feature_dim)
        if self.config.feature_tanh:
            features = torch.tanh(features)
        return Tokens(features[:, None].expand(-1, self.tasks, -1), features)


def _orthogonal(part: nn.Module) -> None:
    """DrQ's start: orthogonal linear maps; convolutions orthogonal in their centre and zero around it."""
    if isinstance(part, nn.Linear):
        nn.init.orthogonal_(part.weight)
        nn.init.zeros_(part.bias)
    elif isinstance(part, nn.Conv2d):
        nn.init.zeros_(part.weight)
        nn.init.orthogonal_(part.weight.data[:, :, 1, 1], nn.init.calculate_gain("relu"))
        assert part.bias is not None
        nn.init.zeros_(part.bias)
