"""The compiled kernel that cuts randomly shifted stacks out of a ring of frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

CHANNELS = 3


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
