"""Prefetching: batches drawn ahead of the updates that use them, so that drawing can happen beside learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ctrlformer.replay import Replay
from ctrlformer.replay.rehearsal import Rehearsal, RehearsalSampler


class PrefetchedBatch(NamedTuple):
    """What one update learns from."""

    batch: Any  # what the agent's `draw` gave
    rehearsal: Rehearsal | None


class BatchPrefetcher:
    """Draws the batches of one step's updates ahead. They depend on the replay and the generator alone, at a fixed
    place in the run; so a resume draws the same again instead of storing batches in the checkpoint."""

    def __init__(
        self,
        replay: Replay,
        rng: np.random.Generator,
        draw: Callable[[Replay, np.random.Generator], Any],
        updates: int,
        sampler: RehearsalSampler | None = None,
    ) -> None:
        self._replay, self._rng, self._draw, self.updates = replay, rng, draw, updates
        self._sampler = sampler
        self._ahead: list[PrefetchedBatch] = []
        self._before: dict[str, Any] = {}  # the generator's state before `_ahead` was drawn

    def draw(self) -> None:
        """Draw the next step's batches from the replay as it is now."""
        self._before = self.random_state
        self._ahead = [self._next() for _ in range(self.updates)]

    def take(self) -> list[PrefetchedBatch]:
        """Return the batches drawn ahead, or draw them now if there are none."""
        if not self._ahead:
            self.draw()
        taken, self._ahead = self._ahead, []
        return taken

    @property
    def random_state(self) -> dict[str, Any]:
        """The generator's state from which a resumed run will repeat what is drawn but not taken."""
        return self._before if self._ahead else dict(self._rng.bit_generator.state)

    def _next(self) -> PrefetchedBatch:
        batch = self._draw(self._replay, self._rng)
        return PrefetchedBatch(batch, self._sampler.draw(self._rng) if self._sampler else None)
