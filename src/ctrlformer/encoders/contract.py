"""What every encoder returns and can do."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.nn.pixel_statistics import PixelStatistics


class Tokens(NamedTuple):
    policy: Tensor  # (B, features), of the task that was asked for
    contrastive: Tensor  # (B, contrastive_dim)


class Encoder(nn.Module):
    """An encoder that gains tasks. Subclasses set `features` and `contrastive_dim` and define `encode`."""

    features: int
    contrastive_dim: int
    projection: int | None = None
    """Width to which every task's actor and critics project the features, each by itself; none: they read them."""

    def __init__(self, config: EncoderConfig, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.shape = shape  # of an observation: (H, W, 3 x stacked frames), or (stacked frames, features)
        self.bf16 = False
        self.statistics = self._new_statistics(shape)

    def _new_statistics(self, shape: tuple[int, ...]) -> PixelStatistics | None:
        return PixelStatistics(shape) if self.config.normalise_pixels else None

    def forward(self, observation: Tensor, task: int) -> Tokens:
        """Encode observations of `task`, uint8 (B, H, W, C) or features (B, stack, F), to fp32."""
        with torch.autocast(observation.device.type, torch.bfloat16, enabled=self.bf16):
            tokens = self.encode(observation, task)
        return Tokens(tokens.policy.float(), tokens.contrastive.float())

    def encode(self, observation: Tensor, task: int) -> Tokens:
        """`forward` without a care for precision."""
        raise NotImplementedError

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        """Make room for one more task and return the new parameters; no old one is replaced."""
        if self.statistics is not None:
            self.statistics.add_task(copy_from)
        return []

    def observe(self, pixels: Tensor, task: int) -> None:
        """Let the pixel statistics see a training batch."""
        if self.statistics is not None:
            self.statistics.update(pixels, task)

    def pixel_scale(self, task: int) -> Tensor | float:
        if self.statistics is not None:
            return self.statistics.scale(task)
        return 1 / 255 if self.config.scale_pixels else 1.0

    def centred(self, observation: Tensor, task: int) -> Tensor:
        """Background subtracted, in units of what strays from it."""
        x = self.without_background(observation, task)
        return x.mul_(torch.as_tensor(self.pixel_scale(task), dtype=x.dtype, device=x.device))

    def without_background(self, observation: Tensor, task: int) -> Tensor:
        """Background subtracted, in grey levels; bytes are exact in bf16, at half the memory."""
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        if self.statistics is None:
            return observation.to(dtype)
        return torch.sub(observation, self.statistics.mean[task].to(dtype))  # one pass: bytes become floats in it
