"""The first convolution of stacked frames: it reads the newest frame and what changed from frame to frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COLOURS = 3
CHANGE_SCALE = 4.0  # of 1, 2, 4 and 8, the least with which speeds are told early (results/search/readings.jsonl)


class ChangeStem(nn.Conv2d):
    """A convolution of the newest frame and the changes between frames. Raw frames differ so little that speeds are
    learned late."""

    def __init__(self, channels: int, width: int, size: int, stride: int, padding: int) -> None:
        super().__init__(channels, width, size, stride, padding)
        self.register_buffer("changes", newest_and_changes(channels // COLOURS), persistent=False)
        self.changes: Tensor

    def forward(self, pixels: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """Stacked frames (B, C, H, W), oldest first, times `scale`.

        Mixing and scaling the weights instead of the pixels gives the same sums without a pass over the batch.
        """
        weight = torch.einsum("ocij,dc->odij", self.weight, self.changes * scale)
        weight = weight.contiguous(memory_format=torch.channels_last)
        return F.conv2d(pixels, weight, self.bias, self.stride, self.padding)


def newest_and_changes(frames: int) -> Tensor:
    """The matrix (C, C) from stacked frames, oldest first, to the newest one and the scaled changes, newest first.

    >>> newest_and_changes(2)[:, 0].tolist()
    [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    """
    mix = torch.zeros(frames, frames)
    mix[-1, 0] = 1.0
    for change in range(1, frames):
        mix[-change, change], mix[-change - 1, change] = CHANGE_SCALE, -CHANGE_SCALE
    return torch.kron(mix, torch.eye(COLOURS))
