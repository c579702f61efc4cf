"""A linear map of image patches that reads bytes: floats exist only a few rows at a time, inside the cache.

Turned into floats all at once, the patches of a batch are the largest tensor of an update (65 MB for 256
observations), written to memory, read back, and kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.compiled import compiled

CHUNK_FLOATS = 2**19  # 2 MB: stays in the cache beside weight and output; from 2**17 to 2**21 little changes


def patches_linear(pixels: Tensor, patch: int, weight: Tensor, offset: Tensor) -> Tensor:
    """(B, H, W, C) to (B, H/p, W/p, D): weight (D, p*p*C) times every patch, plus offset (H/p * W/p, D)."""
    batch, height, width, _ = pixels.shape
    if pixels.dtype == torch.uint8 and pixels.device.type == "cpu":
        out: Tensor = _ChunkedLinear.apply(pixels, patch, weight)  # type: ignore[no-untyped-call]
    else:  # an accelerator is fed best by one large product
        out = F.linear(cut(pixels, patch).to(weight.dtype), weight)
    grid = (height // patch, width // patch, len(weight))
    return out.view(batch, *grid) + offset.view(grid)


def cut(pixels: Tensor, patch: int) -> Tensor:
    """(B, H, W, C) to (B, H/p, W/p, p*p*C)."""
    batch, height, width, channels = pixels.shape
    rows = pixels.reshape(batch, height // patch, patch, width // patch, patch, channels)
    return rows.permute(0, 1, 3, 2, 4, 5).flatten(3)


class _ChunkedLinear(torch.autograd.Function):
    """`patches @ weight.T` for bytes (B, H, W, C) cut into R patches of I, and floats (D, I): bytes get no gradient."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, patch: int, weight: Tensor) -> Tensor:
        ctx.save_for_backward(pixels)
        ctx.patch = patch
        out = torch.empty(_patch_count(pixels, patch), len(weight))
        for part, floats in _float_chunks(pixels, patch):
            torch.mm(floats, weight.t(), out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        (pixels,) = ctx.saved_tensors
        weight = torch.zeros(gradient.shape[1], ctx.patch**2 * pixels.shape[3])
        for part, floats in _float_chunks(pixels, ctx.patch):
            weight.addmm_(gradient[part].t(), floats)
        return None, None, weight


def _patch_count(pixels: Tensor, patch: int) -> int:
    batch, height, width, _ = pixels.shape
    return batch * (height // patch) * (width // patch)


def _float_chunks(pixels: Tensor, patch: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the patches' numbers, and these patches as floats, in one buffer used again and again."""
    patches, size = _patch_count(pixels, patch), patch**2 * pixels.shape[3]
    count = min(patches, max(1, CHUNK_FLOATS // size))
    buffer = torch.empty(count, size)
    rows = pixels.contiguous().flatten(2).numpy()  # (B, H, W*C): a patch is a few stretches of bytes
    for start in range(0, patches, count):
        part = slice(start, min(start + count, patches))
        floats = buffer[: part.stop - start]
        _write_patches(rows, patch, start, floats.numpy())
        yield part, floats


@compiled
def _write_patches(rows: NDArray[np.uint8], patch: int, first: int, floats: NDArray[np.float32]) -> None:
    """Patches from number `first` on, row by row of the picture; torch would move each stretch of bytes by itself."""
    count, size = floats.shape
    stretch = size // patch  # bytes of a patch in one row of pixels
    down, across = rows.shape[1] // patch, rows.shape[2] // stretch
    for number in range(count):
        line, column = divmod(first + number, across)
        picture, band = divmod(line, down)
        for row in range(patch):
            shown = rows[picture, band * patch + row, column * stretch : (column + 1) * stretch]
            written = floats[number, row * stretch : (row + 1) * stretch]
            for index in range(stretch):
                written[index] = shown[index]
