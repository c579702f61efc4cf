"""Running mean and variance of every feature, per task."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FeatureStatistics(nn.Module):
    """Standardises features by running averages that follow them as they are learned."""

    SLOWEST = 1e-3  # least weight of a batch in the averages
    LEAST_VARIANCE = 1e-6
    LARGEST = 5.0  # standardised features are clipped here: a place that hardly ever moved may jump

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0, features))  # (K, F)
        self.register_buffer("variance", torch.ones(0, features))  # (K, F)
        self.register_buffer("batches", torch.zeros(0))  # (K,)
        self.mean: Tensor
        self.variance: Tensor
        self.batches: Tensor

    def add_task(self, copy_from: int | None = None) -> None:
        """A new task starts anew, with its first batch's statistics, or from another task's."""
        if copy_from is None:
            mean, variance = self.mean.new_zeros(1, self.mean.shape[1]), self.mean.new_ones(1, self.mean.shape[1])
            batches = self.batches.new_zeros(1)
        else:
            mean, variance, batches = (x[copy_from, None] for x in (self.mean, self.variance, self.batches))
        self.mean = torch.cat([self.mean, mean])
        self.variance = torch.cat([self.variance, variance])
        self.batches = torch.cat([self.batches, batches])

    @torch.no_grad()
    def update(self, features: Tensor, task: int) -> None:
        """Take a batch (B, F) into the averages."""
        self.batches[task] += 1
        weight = (1 / self.batches[task]).clamp(min=self.SLOWEST)
        self.mean[task].lerp_(features.mean(0), weight)
        self.variance[task].lerp_((features - self.mean[task]).square().mean(0), weight)

    def forward(self, features: Tensor, task: int) -> Tensor:
        """(B, F) with mean 0 and std 1, as far as the averages know."""
        scale = (self.variance[task] + self.LEAST_VARIANCE).rsqrt()
        return ((features - self.mean[task]) * scale).clamp(-self.LARGEST, self.LARGEST)
