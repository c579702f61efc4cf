"""Where a replay's frames live, and how randomly shifted stacks are cut out of them.

A ring is in the machine's memory (`HostRing`) or on the device that learns (`DeviceRing`); both cut the same stacks,
bit for bit. A `FeatureRing`, in either memory, holds what was read from frames once and for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.replay.stack_kernel import CHANNELS, write_stacks


class HostRing:
    """Frames in the machine's memory: compiled code cuts the stacks, and a GPU gets them through pinned memory."""

    def __init__(self, slots: int, image_size: int, device: torch.device) -> None:
        # np.empty: memory that no frame has touched yet costs nothing
        self.frames = np.empty((slots, image_size, image_size, CHANNELS), np.uint8)
        self._device = device

    def write(self, slot: int, frame: NDArray[np.uint8]) -> None:
        """Put a frame (84, 84, 3) in its place."""
        self.frames[slot] = frame

    def stacks(self, slots: NDArray[np.int64], offsets: NDArray[np.int64]) -> Tensor:
        """(N, 84, 84, 9) uint8: the frames in `slots` (N, stack), each stack moved by its `offsets` (N, y and x).

        The memory is new each time, so nobody's batch is ever overwritten; `keep_freed_memory` makes that free.
        """
        size, pin = self.frames.shape[1], _pins(self._device)
        shape = (len(slots), size, size, CHANNELS * slots.shape[1])
        stacks = torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        write_stacks(self.frames, slots, offsets, stacks.numpy())
        return stacks.to(self._device, non_blocking=pin)


class DeviceRing:
    """Frames on the device that learns: only slots and offsets travel there for a batch."""

    def __init__(self, slots: int, image_size: int, device: torch.device) -> None:
        self.frames = torch.empty((slots, image_size, image_size, CHANNELS), dtype=torch.uint8, device=device)

    def write(self, slot: int, frame: NDArray[np.uint8]) -> None:
        """Put a frame (84, 84, 3) in its place."""
        self.frames[slot] = torch.tensor(frame)

    def stacks(self, slots: NDArray[np.int64], offsets: NDArray[np.int64]) -> Tensor:
        """As `HostRing.stacks`."""
        size, device = self.frames.shape[1], self.frames.device
        slot, offset = to_device(slots, device), to_device(offsets, device)
        shown = (torch.arange(size, device=device) + offset[..., None]).clamp(0, size - 1)  # (N, 2, 84)
        row, column = shown[:, 0], shown[:, 1]
        # Broadcast to (N, 84, 84, stack), so that the channels come out in their final order.
        return self.frames[slot[:, None, None], row[:, :, None, None], column[:, None, :, None]].flatten(-2)


class FeatureRing:
    """Features in place of frames. Nothing can be shifted any more, so offsets are not looked at."""

    def __init__(self, slots: int, features: int, device: torch.device, on_device: bool) -> None:
        self.frames = torch.empty((slots, features), device=device if on_device else "cpu")
        self._device, self._on_device = device, on_device

    def write(self, slot: int, frame: NDArray[np.float32]) -> None:
        """Put a frame's features (2048,) in their place."""
        self.frames[slot] = torch.tensor(frame)

    def stacks(self, slots: NDArray[np.int64], _: NDArray[np.int64]) -> Tensor:
        """(N, stack, 2048): the features in `slots` (N, stack)."""
        stacks = self.frames[to_device(slots, self.frames.device)]
        return stacks if self._on_device else to_device(stacks.numpy(), self._device)


FrameRing = HostRing | DeviceRing | FeatureRing


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor: on the CPU the same memory, on a GPU a copy that may still be under way."""
    tensor, pin = torch.from_numpy(array), _pins(device)
    return (tensor.pin_memory() if pin else tensor).to(device, non_blocking=pin)


def _pins(device: torch.device) -> bool:
    """Only from pinned memory can a copy run beside the program."""
    return device.type == "cuda"
