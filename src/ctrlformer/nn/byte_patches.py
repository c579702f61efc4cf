"""A linear map of image patches that reads bytes: floats exist only a few rows at a time, inside the cache.

Turned into floats all at once, the patches of a batch are the largest tensor of an update (65 MB for 256
observations), written to memory, read back, and kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_FLOATS = 2**19  # 2 MB: stays in the cache beside weight and output; from 2**17 to 2**21 little changes


def patches_linear(pixels: Tensor, patch: int, weight: Tensor, offset: Tensor) -> Tensor:
    """uint8 (B, H, W, C) to (B, H/p, W/p, D): weight (D, p*p*C) times every patch, plus offset (H/p * W/p, D)."""
    patches = cut(pixels, patch)
    if pixels.device.type == "cpu":
        out: Tensor = _ChunkedLinear.apply(patches.flatten(0, 2), weight)  # type: ignore[no-untyped-call]
    else:  # an accelerator is fed best by one large product
        out = F.linear(patches.to(weight.dtype), weight)
    return out.view(*patches.shape[:3], -1) + offset.view(*patches.shape[1:3], -1)


def cut(pixels: Tensor, patch: int) -> Tensor:
    """(B, H, W, C) to (B, H/p, W/p, p*p*C); as bytes, since moving floats costs four times that."""
    batch, height, width, channels = pixels.shape
    rows = pixels.reshape(batch, height // patch, patch, width // patch, patch, channels)
    return rows.permute(0, 1, 3, 2, 4, 5).contiguous().flatten(3)


class _ChunkedLinear(torch.autograd.Function):
    """`rows @ weight.T` for bytes (R, I) and floats (D, I). Bytes get no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        out = torch.empty(len(rows), len(weight))
        for part, floats in _float_chunks(rows):
            torch.mm(floats, weight.t(), out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (rows,) = ctx.saved_tensors
        weight = torch.zeros(gradient.shape[1], rows.shape[1])
        for part, floats in _float_chunks(rows):
            weight.addmm_(gradient[part].t(), floats)
        return None, weight


def _float_chunks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the rows, and these rows as floats, in one buffer used again and again."""
    count = max(1, CHUNK_FLOATS // rows.shape[1])
    buffer = torch.empty(min(count, len(rows)), rows.shape[1])
    for start in range(0, len(rows), count):
        part = rows[start : start + count]
        yield slice(start, start + len(part)), buffer[: len(part)].copy_(part)
