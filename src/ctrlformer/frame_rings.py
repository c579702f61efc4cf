"""Where a replay's frames live, and how randomly shifted stacks are cut out of them.

A ring is in the machine's memory (`HostRing`) or on the device that learns (`DeviceRing`); both cut the same stacks,
bit for bit. A `FeatureRing`, in either memory, holds what was read from frames once and for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

CHANNELS = 3


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
    """Only from pinned memory can a copy go on while the program does."""
    return device.type == "cuda"


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Machine code that lets other threads run, kept on disk for the next process where some folder allows it."""
    try:
        kernel: Callable[..., None] = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # numba found neither the package nor the home writable
        kernel = numba.njit(function, nogil=True)
    return kernel


@_compiled
def write_stacks(
    frames: NDArray[np.uint8], slots: NDArray[np.int64], offsets: NDArray[np.int64], stacks: NDArray[np.uint8]
) -> None:
    """Crop every stack at its offset straight into `stacks`; beyond an edge the edge is repeated."""
    for n in range(len(stacks)):
        _write_stack(frames, slots[n], offsets[n, 0], offsets[n, 1], stacks[n])


@_compiled
def _write_stack(
    frames: NDArray[np.uint8], slots: NDArray[np.int64], dy: int, dx: int, stack: NDArray[np.uint8]
) -> None:
    height, width, channels = stack.shape
    dx = min(max(dx, 1 - width), width - 1)  # further away there is nothing but the edge
    first, last = max(-dx, 0), min(width - dx, width) - 1  # the columns that show no repeated edge
    for y in range(height):
        row, shown, start = min(max(y + dy, 0), height - 1), stack[y], first
        if len(slots) == 3:
            a, b, c = frames[slots[0], row], frames[slots[1], row], frames[slots[2], row]
            for x in range(first, last - 4, 5):  # a sixth pixel must be there: `_write_five` spills into it
                _write_five(a, b, c, x + dx, shown, x)
            start += (last - first) // 5 * 5
        for k in range(len(slots)):
            source = frames[slots[k], row]
            for x in range(start, last + 1):
                for channel in range(CHANNELS):
                    shown[x, CHANNELS * k + channel] = source[x + dx, channel]
        for x in range(first):
            for channel in range(channels):
                shown[x, channel] = shown[first, channel]
        for x in range(last + 1, width):
            for channel in range(channels):
                shown[x, channel] = shown[last, channel]


def _interleave_five(typing_context: Any, a: Any, b: Any, c: Any, column: Any, shown: Any, x: Any) -> Any:
    """Interleave five pixels of three rows by vector shuffles: at least twice as fast as what LLVM makes of a loop.

    From each row 16 bytes are read, one more than five pixels; 48 are written, of which the last 3 are rubbish.
    """
    if any(array.layout != "C" for array in (a, b, c, shown)):
        raise TypingError("rows must be contiguous")
    byte, index = ir.IntType(8), ir.IntType(64)
    order = [16 * row + 3 * pixel + channel for pixel in range(5) for row in range(3) for channel in range(3)] + 3 * [0]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def vector_at(array: int, pixel: int, pixel_bytes: int, more: int = 0) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            start = builder.mul(arguments[pixel], index(pixel_bytes))
            return builder.bitcast(
                builder.gep(data, [builder.add(start, index(more))]), ir.VectorType(byte, 16).as_pointer()
            )

        def shuffled(left: Any, right: Any, chosen: list[int]) -> Any:
            return builder.shuffle_vector(left, right, ir.VectorType(ir.IntType(32), len(chosen))(chosen))

        rows = [builder.load(vector_at(row, 3, CHANNELS), align=1) for row in range(3)]
        both, third = shuffled(rows[0], rows[1], list(range(32))), shuffled(rows[2], rows[2], list(range(32)))
        for done in (0, 16, 32):
            pixels = shuffled(both, third, order[done : done + 16])
            builder.store(pixels, vector_at(4, 5, 3 * CHANNELS, done), align=1)
        return context.get_dummy_value()

    return numba.void(a, b, c, numba.int64, shown, numba.int64), generate


_write_five: Any = intrinsic(_interleave_five)
