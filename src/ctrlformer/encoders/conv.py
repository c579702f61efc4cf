"""Strided convolutions to a small map, which every task's policy token reads cell by cell.

Attention gives a token a mean over cells, and has to learn where things are; a reading with weights of its own for
every cell told it sooner in an offline measurement, and is cheaper on a CPU (docs/results.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.errors import ConfigError
from ctrlformer.nn.change_stem import ChangeStem
from ctrlformer.nn.heads import feature_projection
from ctrlformer.nn.transformer import channels_last, initialise


class ConvEncoder(Encoder):
    """Overlapping patches of stride `patch_size`, a 3x3 convolution of stride 2 and one of stride 1, shared by all
    tasks. A policy token is a task's own linear map of all cells to `feature_dim`, with LayerNorm and tanh."""

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        patch, stem, dim = config.patch_size, config.stem_width, config.dim
        if min(height, width) < 2 * patch:
            raise ConfigError(f"encoder.kind conv needs env.image_size of two patches or more: {2 * patch} at least")
        overlap = patch // 4  # with the patches on each side
        self.stem = ChangeStem(channels, stem, patch + 2 * overlap, stride=patch, padding=overlap)
        self.convolutions = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(stem, dim, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(dim, dim, 3, padding=1),
            nn.ReLU(),
        )
        initialise(self, config.init)
        for part in (self.stem, self.convolutions):
            channels_last(part)
        self.policy_tokens = nn.ModuleList()
        self.features = config.feature_dim
        rows, columns = ((size // patch - 1) // 2 + 1 for size in (height, width))
        self.contrastive_dim = dim * rows * columns

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        super().add_task(copy_from)
        token = feature_projection(self.contrastive_dim, self.features)
        if copy_from is not None:
            token.load_state_dict(self.policy_tokens[copy_from].state_dict())
        token.to(self.stem.weight.device)
        self.policy_tokens.append(token)
        return list(token.parameters())

    def encode(self, observation: Tensor, task: int) -> Tokens:
        pixels = self.without_background(observation, task).permute(0, 3, 1, 2)  # (B, C, H, W), channels last in memory
        cells = self.convolutions(self.stem(pixels, self.pixel_scale(task))).flatten(1)  # (B, dim * h * w)
        token = self.policy_tokens[task]
        assert isinstance(token, nn.Sequential)
        x = token[0](cells)  # (B, F)
        with torch.autocast(x.device.type, enabled=False):
            return Tokens(token[1:](x.float()), cells)
