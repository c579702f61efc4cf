"""DrQ's convolutional encoder, shared by all tasks: the paper's main baseline."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.nn.transformer import channels_last


class CnnEncoder(Encoder):
    """Four 3x3 convolutions of 32 channels, the first with stride 2; then linear, LayerNorm, tanh."""

    CHANNELS = 32

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        layers: list[nn.Module] = []
        for index in range(4):
            layers += [nn.Conv2d(channels, self.CHANNELS, 3, stride=2 if index == 0 else 1), nn.ReLU()]
            channels = self.CHANNELS
        self.convolutions = nn.Sequential(*layers)
        channels_last(self.convolutions)
        rows, columns = ((size - 3) // 2 + 1 - 6 for size in (height, width))
        self.head = nn.Linear(self.CHANNELS * rows * columns, config.feature_dim)
        self.norm = nn.LayerNorm(config.feature_dim)
        self.contrastive_dim = config.feature_dim
        self.tasks = 0
        self.apply(_orthogonal)

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        self.tasks += 1  # one feature vector serves every task; only heads are the task's own
        return super().add_task(copy_from)

    def encode(self, pixels: Tensor, task: int) -> Tokens:
        x = pixels.float()
        if self.statistics is not None:
            x = x - self.statistics.mean[task]
        x = (x * self.pixel_scale(task)).permute(0, 3, 1, 2)  # (B, C, H, W), channels last in memory
        features = self.norm(self.head(self.convolutions(x).flatten(1)))  # (B, feature_dim)
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
