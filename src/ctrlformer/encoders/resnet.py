"""The paper's ResNet baseline: a frozen ResNet-50 for every frame, and one trained layer on its features.

Names and shapes of the network's tensors are those of the public ImageNet weights, so that these fit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.nn.transformer import initialise


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut. The 3x3 strides (ResNet "v1.5"), as the public weights want it."""

    EXPANSION = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()  # without tensors, so without names
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet_features(width: int) -> int:
    """Features that a ResNet of this width makes of a picture: 2048 for ResNet-50."""
    doublings = len(ResNet.BLOCKS) - 1
    return Bottleneck.EXPANSION * (width << doublings)


class ResNet(nn.Module):
    """ResNet-50 without its classifier, frozen: no gradient, and batch norm always by the stored statistics."""

    BLOCKS = (3, 4, 6, 3)

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, blocks in enumerate(self.BLOCKS):
            middle = width * 2**stage
            layer = []
            for block in range(blocks):
                layer.append(Bottleneck(inputs, middle, stride=2 if stage and not block else 1))
                inputs = Bottleneck.EXPANSION * middle
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layer))
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> ResNet:
        """Nothing here ever trains."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 2048): features averaged over all places."""
        return self.places(x).mean((2, 3))

    def places(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 2048, H/32, W/32): features of every place."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(len(self.BLOCKS)):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x


def empty_resnet(width: int) -> ResNet:
    """Names and shapes without memory, until weights are loaded."""
    with torch.device("meta"):
        return ResNet(width)


class ResNetEncoder(Encoder):
    """The trained layer, shared by all tasks: a stack's features, oldest frame first, to linear, LayerNorm, tanh."""

    def __init__(self, config: EncoderConfig, shape: tuple[int, int]) -> None:
        super().__init__(config, shape)
        frames, features = shape
        self.head = nn.Linear(frames * features, config.feature_dim)
        self.norm = nn.LayerNorm(config.feature_dim)
        self.features = self.contrastive_dim = config.feature_dim
        initialise(self, "orthogonal")

    def encode(self, observation: Tensor, task: int) -> Tokens:
        features = self.norm(self.head(observation.flatten(1)))  # (B, 3, 2048) to (B, feature_dim)
        if self.config.feature_tanh:
            features = torch.tanh(features)
        return Tokens(features, features)
