"""Refuse tensors of different shapes where broadcasting would hide a mistake."""

from __future__ import annotations

from torch import Tensor


def same_shape(*tensors: Tensor) -> None:
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise ValueError(f"shapes differ and would broadcast: {sorted(shapes)}")
