"""Places: each task's policy token asks a shared feature map where things are, in every frame of the stack.

It learns by itself, without rewards: from the places that the token finds, the frame must be painted again. Actor and
critics read places and their changes from frame to frame, and send no gradient back.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.encoders.ctrlformer import FineMap, PatchEmbedding
from ctrlformer.errors import ConfigError
from ctrlformer.nn.feature_statistics import FeatureStatistics
from ctrlformer.nn.places import Painter, PlaceReader
from ctrlformer.nn.transformer import initialise
from ctrlformer.replay.stack_kernel import CHANNELS


class PlacesEncoder(Encoder):
    """A policy token is K questions; features are the answers' places in the newest frame, and how they changed."""

    SHARPNESS = 2.0  # of the questions at the start
    ANSWER = 3  # numbers of an answer: x, y, presence
    PAINT_STRIDE = 2  # pixels of a frame for one of its painted picture

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        if height % config.patch_size or width % config.patch_size:
            raise ConfigError(f"encoder.patch_size {config.patch_size} does not divide env.image_size {height}")
        self.stack = channels // CHANNELS
        self.statistics = self._new_statistics((height, width, CHANNELS))  # of single frames
        self.embed = PatchEmbedding(config.patch_size, CHANNELS, config.stem_width)
        self.map = FineMap(config.stem_width, config.stem_convs)
        self.reader = PlaceReader((height // config.patch_size, width // config.patch_size))
        self.painter = Painter(height // self.PAINT_STRIDE)
        self.policy_tokens = nn.ParameterList()  # (K, C + 1) each
        self.brushes = nn.ParameterList()  # (K, 4) each
        self.answers = config.questions * self.ANSWER  # numbers that tell a frame
        self.features = self.contrastive_dim = self.stack * self.answers
        self.projection = config.feature_dim
        self.standardise = FeatureStatistics(self.features)
        initialise(self, config.init)
        if config.init == "orthogonal":  # elsewhere the patch map is a convolution, which gets ReLU's gain
            self.embed.linear.weight.data.mul_(nn.init.calculate_gain("relu"))

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        super().add_task(copy_from)
        self.standardise.add_task(copy_from)
        if copy_from is None:
            token, brushes = self._new_questions(), self.painter.new_brushes(self.config.questions)
        else:
            token, brushes = (kept[copy_from].detach().clone() for kept in (self.policy_tokens, self.brushes))
        device = self.embed.linear.weight.device
        new = [nn.Parameter(token.to(device)), nn.Parameter(brushes.to(device))]
        self.policy_tokens.append(new[0])
        self.brushes.append(new[1])
        return new

    def _new_questions(self) -> Tensor:
        width = self.config.stem_width
        asked = torch.randn(self.config.questions, width) * self.SHARPNESS / math.sqrt(width)
        return torch.cat([asked, torch.zeros(self.config.questions, 1)], dim=1)

    def encode(self, observation: Tensor, task: int) -> Tokens:
        places = self.places(self.frames(observation), task)  # (B S, K, 3)
        features: Tensor = self.standardise(self.changes(places.reshape(-1, self.stack, self.answers)), task)
        return Tokens(features, features)

    def frames(self, observation: Tensor) -> Tensor:
        """Stacks (B, H, W, 3S) to single frames (B S, H, W, 3), oldest first."""
        batch, height, width, _ = observation.shape
        frames = observation.reshape(batch, height, width, self.stack, CHANNELS).permute(0, 3, 1, 2, 4)
        return frames.reshape(-1, height, width, CHANNELS)

    def cells(self, frames: Tensor, task: int) -> Tensor:
        """Frames (N, H, W, 3) to the feature map (N, h, w, C)."""
        mean = None if self.statistics is None else self.statistics.mean[task]
        cells: Tensor = self.map(self.embed(frames, mean, self.pixel_scale(task)))
        return cells

    def places(self, frames: Tensor, task: int) -> Tensor:
        """Frames (N, H, W, 3) to the answers (N, K, 3)."""
        answers: Tensor = self.reader(self.policy_tokens[task], self.cells(frames, task))
        return answers

    def changes(self, answers: Tensor) -> Tensor:
        """Answers of stacks (B, S, 3K) to (B, S 3K): those of the newest frame, and the differences before it."""
        return torch.cat([answers[:, -1:], answers[:, 1:] - answers[:, :-1]], dim=1).flatten(1)

    def painting_loss(self, places: Tensor, frames: Tensor, task: int) -> Tensor:
        """Squared error of the frames (N, H, W, 3) painted from their places (N, K, 3), centred and at half size."""
        mean = 0.0 if self.statistics is None else self.statistics.mean[task]
        centred = (frames.float() - mean) * self.pixel_scale(task)
        wanted = F.avg_pool2d(centred.permute(0, 3, 1, 2), self.PAINT_STRIDE)
        loss: Tensor = (self.painter(places, self.brushes[task]) - wanted).square().mean()
        return loss
