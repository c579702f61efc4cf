"""Pixel statistics per task: what the background looks like, and how far frames stray from it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PixelStatistics(nn.Module):
    """Running mean image and std of each task's observations.

    In control tasks almost every pixel is still background, so that tokens hardly differ between states and
    a small ViT learns nothing. Centred and scaled pixels show what moves.
    """

    # A few observations of each batch tell the mean as well as all of them, at an eighth of the time.
    SAMPLE = 32
    # Copied statistics count as at most so many batches: the first batch of the new task moves them by 2 %, so that the
    # features of a copied token stay where they were, and some hundred batches make them the new task's own.
    COPIED_BATCHES = 50

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(0, *shape))  # (K, H, W, C), in 0..255
        self.register_buffer("variance", torch.zeros(0))  # (K,)
        self.register_buffer("batches", torch.zeros(0))  # (K,)
        self.mean: Tensor
        self.variance: Tensor
        self.batches: Tensor

    def add_task(self, copy_from: int | None = None) -> None:
        """A new task starts from half grey, which its first batch replaces, or from another task's statistics."""
        if copy_from is None:
            mean, variance = self.mean.new_full((1, *self.shape), 127.5), self.variance.new_full((1,), 127.5**2)
            batches = self.batches.new_zeros(1)
        else:
            mean, variance = self.mean[copy_from, None], self.variance[copy_from, None]
            batches = self.batches[copy_from, None].clamp(max=self.COPIED_BATCHES)
        self.mean = torch.cat([self.mean, mean])
        self.variance = torch.cat([self.variance, variance])
        self.batches = torch.cat([self.batches, batches])

    @torch.no_grad()
    def update(self, pixels: Tensor, task: int) -> None:
        """Take a batch (B, H, W, C) of uint8 into the plain average over all batches so far."""
        sample = pixels[: self.SAMPLE].float()
        self.batches[task] += 1
        weight = 1 / self.batches[task]
        self.mean[task].lerp_(sample.mean(0), weight)
        self.variance[task].lerp_((sample - self.mean[task]).square().mean(), weight)

    def scale(self, task: int) -> Tensor:
        """What to multiply centred pixels by: one over their std, which is at least one grey level."""
        return self.variance[task].clamp(min=1.0).rsqrt()
