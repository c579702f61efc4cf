"""Batches of the last updates as actor and critics read them: they learn from each again, without the encoder."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class HeadBatch(NamedTuple):
    """What actor and critics need of a batch; its features are those of the encoder at that time."""

    now: Tensor  # (B, F)
    next_policy: Tensor  # (W, B, F)
    next_value: Tensor  # (W, B, F)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,)
    discount: Tensor  # (B,)


class RecentBatches:
    """The batches of a task's last `count` updates, newest first."""

    def __init__(self, count: int) -> None:
        self._held: deque[HeadBatch] = deque(maxlen=count)

    def __iter__(self) -> Iterator[HeadBatch]:
        return iter(self._held)

    def add(self, batch: HeadBatch) -> None:
        self._held.appendleft(batch)

    def tensors(self) -> dict[str, Tensor]:
        """All that is held, by field: (K, ...)."""
        fields = zip(HeadBatch._fields, zip(*self._held, strict=True), strict=False)  # none if nothing is held
        return {name: torch.stack(parts) for name, parts in fields}

    def load_tensors(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Take over `tensors()`; anything else is a `ValueError`."""
        if set(saved) != set(HeadBatch._fields) or len({len(part) for part in saved.values()}) != 1:
            raise ValueError(f"recent batches have {', '.join(sorted(saved))[:80]}, not {', '.join(HeadBatch._fields)}")
        parts = (saved[name].to(device) for name in HeadBatch._fields)
        self._held.extend(HeadBatch(*each) for each in zip(*parts, strict=True))
