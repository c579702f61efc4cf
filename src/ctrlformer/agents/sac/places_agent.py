"""SAC on places: the encoder learns by painting a few frames in every update, actor and critics from stored places.

Places of a frame are the same in every observation that shows it, so they are stored, one row per slot of the replay's
ring. An update paints some random frames, brings some more up to date, and takes all observations of its batch from the
rows: it encodes as many frames as it paints, instead of six for every transition. Rows are at most some hundred updates
old; a frame's first row is written by the first update after it was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ctrlformer.agents.sac.agent import Features, SacAgent
from ctrlformer.config import Config, TransferConfig
from ctrlformer.encoders import PlacesEncoder
from ctrlformer.replay import Replay, Transitions

ROWS = "places"  # of the stored rows in a checkpoint
GROWTH = 1024  # rows by which the store grows


class PlacesAgent(SacAgent):
    """`SacAgent` with a `PlacesEncoder`, whose gradient comes from painting alone."""

    def __init__(self, config: Config, device: torch.device | str = "cpu", seed: int = 0) -> None:
        super().__init__(config, device, seed)
        self._rows: dict[str, Tensor] = {}  # (slots, 3K) for every task of the stage

    @property
    def _places(self) -> PlacesEncoder:
        return cast("PlacesEncoder", self.encoder)

    def add_task(self, task: str, action_dim: int, transfer: TransferConfig | None = None) -> None:
        """As `SacAgent`'s; the rows of earlier stages are no longer needed."""
        if transfer:
            self._rows.clear()
        super().add_task(task, action_dim, transfer)
        self._rows[task] = torch.zeros(0, self._places.answers, device=self.device)

    def draw(self, replay: Replay, rng: np.random.Generator) -> Transitions:  # type: ignore[override]
        """Transitions by the slots of their frames, the frames that came since the last draw, and random ones."""
        s = self.settings
        newest = 2 * s.update_every + 2  # a step brings one frame, or two where an episode begins
        return replay.transitions(rng, s.batch_size, s.n_step, s.discount, newest, s.painted + s.refreshed)

    def _read(self, task: str, batch: Transitions) -> tuple[Features, Tensor, Tensor, Tensor]:  # type: ignore[override]
        slots, action, reward, discount, next_slots, frames, frame_slots = (
            x.to(self.device, non_blocking=True) for x in batch
        )
        reward = self._in_critics_unit(task, reward)
        index, rows = self._index(task), self._rows_up_to(task, batch)
        painting = self._paint(index, frames, frame_slots, rows)
        now = self._places.changes(rows[slots])  # (B, F)
        self._places.standardise.update(now, index)
        features = [self._places.standardise(x, index)[None] for x in (now, self._places.changes(rows[next_slots]))]
        read = Features(features[0], features[1], features[1], None, None, painting)
        return read, action, reward, discount

    def _paint(self, task: int, frames: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
        """The painting's loss on the last frames, which are random; all frames' places go into the rows."""
        first, places = len(frames) - self.settings.painted, self._places
        self.encoder.observe(frames[first:], task)
        painted = places.places(frames[first:], task)  # (N, K, 3) with gradient
        with torch.no_grad():
            rows[slots[:first]] = places.places(frames[:first], task).flatten(1)
            rows[slots[first:]] = painted.flatten(1)
        return places.painting_loss(painted, frames[first:], task)

    def _rows_up_to(self, task: str, batch: Transitions) -> Tensor:
        """The task's rows, as many as the batch has slots for; new ones are zero."""
        rows = self._rows[task]
        needed = 1 + max(int(x.max()) for x in (batch.slots, batch.next_slots, batch.frame_slots))
        if needed > len(rows):
            grown = rows.new_zeros(-(-needed // GROWTH) * GROWTH, rows.shape[1])
            grown[: len(rows)] = rows
            rows = self._rows[task] = grown
        return rows

    # Saving

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        rows = {str(self._index(task)): rows for task, rows in self._rows.items()}
        return super().tensors() | {ROWS: rows}

    def load_tensors(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_tensors(saved)
        self._rows = {self.tasks[int(number)]: self._checked(rows) for number, rows in saved[ROWS].items()}

    def _checked(self, rows: Tensor) -> Tensor:
        if rows.ndim != 2 or rows.shape[1] != self._places.answers or not rows.is_floating_point():
            raise ValueError(f"{ROWS}: rows of shape {tuple(rows.shape)}, expected (slots, {self._places.answers})")
        return rows.to(self.device, torch.float32, copy=True)
