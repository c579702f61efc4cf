"""Replays that hold both stacked observations of every step, and the random shifts their users add.

`StackedReplay` is DrQ's pattern in plain numpy; the peers' own replays are in peers.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.experience import ACTIONS, SIZE, STACK, transitions

PAD = 4  # pixels
VIEWS = 2  # of each observation

Draw = Callable[[int], tuple[Tensor, Tensor]]  # batch size to uint8 observations and next observations (B, C, H, W)


class StackedReplay:
    """DrQ's replay: arrays of observations and of next observations, uint8 (N, 9, 84, 84)."""

    def __init__(self, steps: int) -> None:
        self.obses = np.empty((steps, 3 * STACK, SIZE, SIZE), np.uint8)
        self.next_obses = np.empty_like(self.obses)
        self.actions = np.empty((steps, ACTIONS), np.float32)
        self.rewards = np.empty((steps, 1), np.float32)
        self.not_dones = np.ones((steps, 1), np.float32)
        for place, step in enumerate(transitions(steps)):
            self.obses[place], self.next_obses[place] = step.observation, step.next_observation
            self.actions[place], self.rewards[place] = step.action, step.reward
        self._rng = np.random.default_rng(0)

    def draw(self, batch: int) -> tuple[Tensor, Tensor]:
        chosen = self._rng.integers(len(self.obses), size=batch)
        return torch.as_tensor(self.obses[chosen]), torch.as_tensor(self.next_obses[chosen])


def shifted_views(draw: Draw, batch: int) -> list[Tensor]:
    """A batch as DrQ learns from it: two shifts of s and two of s', as floats (B, C, H, W)."""
    return [shifted(pixels.float()) for pixels in draw(batch) for _ in range(VIEWS)]


def shifted(pixels: Tensor) -> Tensor:
    """Replicate the edges by 4 pixels, then cut out a random window for every observation: (B, C, H, W)."""
    height, width = pixels.shape[-2:]
    padded = F.pad(pixels, (PAD, PAD, PAD, PAD), mode="replicate")
    corners: list[list[int]] = torch.randint(2 * PAD + 1, (len(pixels), 2)).tolist()
    windows = [
        image[:, top : top + height, left : left + width] for image, (top, left) in zip(padded, corners, strict=True)
    ]
    return torch.stack(windows)


def array_bytes(holder: object) -> int:
    """Bytes of the arrays and tensors that an object holds; one held under two names counts once."""
    found = {}
    for part in vars(holder).values():
        if isinstance(part, Tensor):
            found[part.data_ptr()] = part.nbytes
        elif isinstance(part, np.ndarray):
            found[part.ctypes.data] = part.nbytes
    return sum(found.values())
