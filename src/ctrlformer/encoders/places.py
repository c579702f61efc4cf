"""Places: each task's policy token asks a shared map of the stacked frames where things are.

A map is the same function everywhere in the picture and a position is a number, so that what is learned of a target at
some places holds at others. Features are positions; they learn from the critics, and from painting the frames again.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.nn.places import Painter, PlaceReader
from ctrlformer.nn.transformer import channels_last, initialise


class PlacesEncoder(Encoder):
    """A policy token is K questions; features are their answers: x, y and presence of each."""

    SHARPNESS = 2.0  # of the questions at the start
    ANSWER = 3  # numbers of an answer
    STRIDED = 2  # convolutions of stride 2 before the map
    PAINT_STRIDE = 2  # pixels of a frame for one of its painted picture

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        self.map = self._make_map(channels)
        shrink = 2**self.STRIDED
        self.grid = (-(-height // shrink), -(-width // shrink))
        self.reader = PlaceReader(self.grid)
        self.painter = Painter(height // self.PAINT_STRIDE, channels)
        self.policy_tokens = nn.ParameterList()  # (K, C + 1) each
        self.brushes = nn.ParameterList()  # (K, channels + 1) each
        self.features = self.contrastive_dim = config.questions * self.ANSWER
        self.projection = config.feature_dim
        initialise(self, config.init)

    def _make_map(self, channels: int) -> nn.Sequential:
        """3x3 convolutions with a ReLU after each: two of stride 2, the first at half the width, then `stem_convs`."""
        width = self.config.stem_width
        widths = [max(width // 2, 1)] + [width] * (1 + self.config.stem_convs)
        layers: list[nn.Module] = []
        for depth, out in enumerate(widths):
            layers += [nn.Conv2d(channels, out, 3, stride=2 if depth < self.STRIDED else 1, padding=1), nn.ReLU()]
            channels = out
        convolutions = nn.Sequential(*layers)
        channels_last(convolutions)
        return convolutions

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        super().add_task(copy_from)
        if copy_from is None:
            token, brushes = self._new_questions(), self.painter.new_brushes(self.config.questions)
        else:
            token, brushes = (kept[copy_from].detach().clone() for kept in (self.policy_tokens, self.brushes))
        device = next(self.map.parameters()).device
        new = [nn.Parameter(token.to(device)), nn.Parameter(brushes.to(device))]
        self.policy_tokens.append(new[0])
        self.brushes.append(new[1])
        return new

    def _new_questions(self) -> Tensor:
        width = self.config.stem_width
        asked = torch.randn(self.config.questions, width) * self.SHARPNESS / math.sqrt(width)
        return torch.cat([asked, torch.zeros(self.config.questions, 1)], dim=1)

    def encode(self, observation: Tensor, task: int) -> Tokens:
        cells = self.cells(observation, task)
        with torch.autocast(cells.device.type, enabled=False):  # a place in bf16 would be off by a pixel
            features = self.reader(self.policy_tokens[task], cells.float()).flatten(1)  # (B, 3K)
        return Tokens(features, features)

    def cells(self, observation: Tensor, task: int) -> Tensor:
        """uint8 (B, H, W, C) to the map (B, h, w, C')."""
        cells: Tensor = self.map(self.centred(observation, task).permute(0, 3, 1, 2))
        return cells.permute(0, 2, 3, 1)

    def painting_loss(self, features: Tensor, observation: Tensor, task: int) -> Tensor:
        """Squared error of the frames (B, H, W, C) painted from their places (B, 3K), centred and at half size."""
        places = features.reshape(len(features), -1, self.ANSWER)  # (B, K, 3)
        wanted = F.avg_pool2d(self.centred(observation, task).permute(0, 3, 1, 2).float(), self.PAINT_STRIDE)
        loss: Tensor = (self.painter(places, self.brushes[task]) - wanted).square().mean()
        return loss
