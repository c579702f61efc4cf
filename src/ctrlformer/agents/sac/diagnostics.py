"""What a failing training can be read by, measured on its newest episode: values, rank of features, dead units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def effective_rank(features: Tensor) -> Tensor:
    """Exponential of the entropy of the singular values' shares (Roy and Vetterli 2007) of centred features (N, F):
    how many directions the features really use.

    >>> round(float(effective_rank(torch.tensor([[1.0, 2.0], [-1.0, -2.0], [0.5, 1.0]]))), 3)
    1.0
    """
    values = torch.linalg.svdvals(features - features.mean(0))
    shares = values / values.sum().clamp(min=1e-12)
    rank: Tensor = torch.special.entr(shares).sum().exp()
    return rank


class DeadUnits:
    """Counts the ReLU units that none of a batch's inputs activates."""

    def __init__(self) -> None:
        self.dead = self.units = 0

    @property
    def share(self) -> float:
        return self.dead / self.units if self.units else 0.0

    @contextmanager
    def watch(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Count in every forward pass of the modules' ReLUs."""
        relus = {part for module in modules for part in module.modules() if isinstance(part, nn.ReLU)}
        hooks = [relu.register_forward_hook(self._count) for relu in relus]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _count(self, _: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        channels = 1 if out.ndim == 4 else -1  # of (N, C, H, W); of (N, D) and of tokens (N, T, D)
        active = (out > 0).movedim(channels, 0).flatten(1).any(1)  # (units,)
        self.dead += int((~active).sum())
        self.units += len(active)
