"""Exponential moving average of a whole module: parameters AND buffers."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(module: Module) -> Module:
    """A copy that no optimiser will touch."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def ema_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau online. Buffers (batch norm, pixel statistics) are copied whole:
    they are running averages already."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for old, new in zip(target.buffers(), online.buffers(), strict=True):
        old.copy_(new)
