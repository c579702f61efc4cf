"""PackNet (Mallya and Lazebnik 2018): every stage owns a share of the encoder's weights and leaves the rest free.

A stage trains the weights that nobody owns. When most of its updates are done it keeps the largest of them, sets the
others to zero and trains on with those that it has kept. An old task is played with the weights that were owned by the
end of its own stage: exactly what it had then. What is no matrix (biases, norms, positions) belongs to the first stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PRUNE_AT = 0.8  # share of a stage's updates after which it prunes


class PackNet(nn.Module):
    """Knows which stage owns which weights of a network, of those that the network has when this is made."""

    def __init__(self, network: nn.Module, share: float) -> None:
        """A stage keeps `share` of the weights that are free when it prunes, matrix by matrix."""
        super().__init__()
        matrices = [(name, p) for name, p in network.named_parameters() if p.ndim > 1 and "position" not in name]
        self._matrices = [p for _, p in matrices]
        self._network, self._share = [network], share  # in a list: it is no part of this module
        self.stage = 1
        self._stage_of_task: list[int] = []
        self.register_buffer("pruned", torch.tensor(False))
        self.pruned: Tensor
        for number, weight in enumerate(self._matrices):
            owner = torch.zeros(weight.shape, dtype=torch.int16, device=weight.device)  # 0: nobody
            self.register_buffer(f"owner{number}", owner)

    @property
    def owned(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Matrices, each with the stages that own its weights."""
        return [(weight, self.get_buffer(f"owner{number}")) for number, weight in enumerate(self._matrices)]

    def add_task(self) -> None:
        """A task of the stage under way."""
        self._stage_of_task.append(self.stage)

    def begin_stage(self) -> None:
        """A later stage: only free weights learn, and what is added after this."""
        self.prune()  # unless the last stage came so far by itself
        self.stage += 1
        self.pruned.fill_(False)
        self._network[0].requires_grad_(False)
        for weight in self._matrices:
            weight.requires_grad_(True)

    @torch.no_grad()
    def prune(self) -> None:
        """Keep the largest free weights for this stage and set the others to zero; once a stage."""
        if self.pruned:
            return
        for weight, owner in self.owned:
            free = owner == 0
            size = torch.where(free, weight.abs(), -1.0).flatten()
            kept = size.topk(math.ceil(self._share * int(free.sum()))).indices
            owner.view(-1)[kept] = self.stage
            weight[owner == 0] = 0.0
        self.pruned.fill_(True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, an optimiser may step; weights that are not this stage's to train are put back to the bit."""
        before = [weight.detach().clone() for weight in self._matrices]
        yield
        ours = self.stage if self.pruned else 0
        with torch.no_grad():
            for (weight, owner), old in zip(self.owned, before, strict=True):
                weight.copy_(torch.where(owner == ours, weight, old))

    @contextmanager
    def weights_of(self, task: int) -> Iterator[None]:
        """Inside, the network has the weights that were owned at the end of the task's stage, and zeros elsewhere."""
        stage = self._stage_of_task[task]
        if stage == self.stage:
            yield
            return
        before = [weight.detach().clone() for weight in self._matrices]
        with torch.no_grad():
            for weight, owner in self.owned:
                weight.mul_((owner > 0) & (owner <= stage))
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, old in zip(self._matrices, before, strict=True):
                    weight.copy_(old)
