"""DrQ's convolutional encoder, shared by all tasks: the paper's main baseline."""

from __future__ import annotations

from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.nn.transformer import channels_last, initialise


class CnnEncoder(Encoder):
    """Four 3x3 convolutions of 32 channels, the first with stride 2. Every head projects their output by itself."""

    CHANNELS = 32

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        layers: list[nn.Module] = []
        for index in range(4):
            layers += [nn.Conv2d(channels, self.CHANNELS, 3, stride=2 if index == 0 else 1), nn.ReLU()]
            channels = self.CHANNELS
        self.convolutions = nn.Sequential(*layers)
        initialise(self, config.init)
        channels_last(self.convolutions)
        rows, columns = ((size - 3) // 2 + 1 - 6 for size in (height, width))
        self.features = self.contrastive_dim = self.CHANNELS * rows * columns
        self.projection = config.feature_dim

    def encode(self, observation: Tensor, task: int) -> Tokens:
        pixels = self.centred(observation, task).permute(0, 3, 1, 2)  # (B, C, H, W), channels last in memory
        features = self.convolutions(pixels).flatten(1)  # (B, features)
        return Tokens(features, features)
