"""Convolutions to two maps, of which every task's policy token reads positions: where what it looks for is.

In an offline measurement positions told more of targets that were not seen than a linear reading with weights for every
cell did (docs/results.md): a position is a number, and what is learned of it at some places can hold in between.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.errors import ConfigError
from ctrlformer.nn.change_stem import ChangeStem
from ctrlformer.nn.transformer import channels_last, initialise

LARGEST_LOGIT = 30.0
POSITION_SCALE = 2.0  # positions reach from -2 to 2: about as large as what heads read elsewhere


class PlacesEncoder(Encoder):
    """A fine map of stride `patch_size` / 2 and a coarse one of `patch_size`, shared by all tasks.

    A policy token is `feature_dim` / 4 queries to each map. A query's answer is the mean position, x and y, under the
    softmax of its match with every cell: `feature_dim` numbers in all.
    """

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        patch, fine, coarse = config.patch_size, config.stem_width, config.dim
        if patch % 2 or min(height, width) < 2 * patch:
            raise ConfigError(
                f"encoder.kind places needs an even encoder.patch_size, and env.image_size of two patches or more:"
                f" {2 * patch} at least"
            )
        if config.feature_dim % 4:
            raise ConfigError(f"encoder.kind places: encoder.feature_dim {config.feature_dim} is not a multiple of 4")
        self.stem = ChangeStem(channels, fine, patch, stride=patch // 2, padding=(patch - 1) // 2)
        self.fine = nn.Sequential(nn.Conv2d(fine, fine, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(
            nn.Conv2d(fine, coarse, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(coarse, coarse, 3, padding=1),
            nn.ReLU(),
        )
        initialise(self, config.init)
        for part in (self.stem, self.fine, self.coarse):
            channels_last(part)
        self.policy_tokens = nn.ModuleList()
        self.features = config.feature_dim
        self.contrastive_dim = coarse

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        super().add_task(copy_from)
        token = PolicyToken(self.config)
        if copy_from is not None:
            token.load_state_dict(self.policy_tokens[copy_from].state_dict())
        token.to(self.stem.weight.device)
        self.policy_tokens.append(token)
        return list(token.parameters())

    def encode(self, observation: Tensor, task: int) -> Tokens:
        fine, coarse = self.maps(observation, task)
        return Tokens(self.policy_tokens[task](fine, coarse), coarse.float().mean((2, 3)))

    def maps(self, observation: Tensor, task: int) -> tuple[Tensor, Tensor]:
        """The fine map (B, C', h, w) and the coarse one (B, D, h / 2, w / 2)."""
        pixels = self.without_background(observation, task).permute(0, 3, 1, 2)  # (B, C, H, W), channels last in memory
        stem = F.relu(self.stem(pixels, self.pixel_scale(task)))
        return self.fine(stem), self.coarse(stem)


class PolicyToken(nn.Module):
    """A task's queries to both maps."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        count = config.feature_dim // 4
        self.fine = nn.Linear(config.stem_width, count, bias=False)  # softmax takes out what all cells share
        self.coarse = nn.Linear(config.dim, count, bias=False)
        for queries in (self.fine, self.coarse):
            nn.init.orthogonal_(queries.weight)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """The two maps to the positions (B, F)."""
        answers = [mean_positions(fine, self.fine), mean_positions(coarse, self.coarse)]  # (B, 2, K) each
        return POSITION_SCALE * torch.cat(answers, dim=1).flatten(1)


def mean_positions(cells: Tensor, queries: nn.Linear) -> Tensor:
    """Cells (B, C, h, w) to the mean x and y, -1 to 1, under the softmax of every query over them: (B, 2, K)."""
    logits = queries(cells.permute(0, 2, 3, 1).flatten(1, 2)).float()  # (B, N, K)
    with torch.autocast(cells.device.type, enabled=False):
        # Bounded, so that no exponential overflows or vanishes: the maximum over cells would cost more than the rest.
        weights = torch.exp(logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT))
        # One product gives both means and what they are divided by.
        x, y = (centres(size, cells) for size in (cells.shape[3], cells.shape[2]))
        grid = torch.stack([x.repeat(len(y)), y.repeat_interleave(len(x)), torch.ones_like(logits[0, :, 0])])  # (3, N)
        sums = grid @ weights  # (B, 3, K)
    return sums[:, :2] / sums[:, 2:]


def centres(count: int, like: Tensor) -> Tensor:
    """The middles of so many cells between -1 and 1.

    >>> centres(2, torch.zeros(1)).tolist()
    [-0.5, 0.5]
    """
    return (torch.arange(count, device=like.device, dtype=torch.float32) + 0.5) * (2 / count) - 1
