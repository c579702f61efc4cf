from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ctrlformer.replay import Batch, Replay
from ctrlformer.replay.rehearsal import Outputs, RehearsalSampler, store
from ctrlformer.training.prefetch import BatchPrefetcher, PrefetchedBatch


def sample(replay: Replay, rng: np.random.Generator, size: int = 3) -> Batch:
    return replay.sample(rng, size, n_step=2, next_views=1)


def filled(steps: int = 12) -> Replay:
    replay = Replay(None, 50, 1, image_size=12)
    rng = np.random.default_rng(0)

    def frame() -> np.ndarray:
        return rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)

    replay.begin(frame())
    for number in range(steps):
        replay.add(np.array([number], np.float32), float(number), False, frame())
    return replay


def same(mine: PrefetchedBatch, theirs: PrefetchedBatch) -> bool:
    return all(a is b or np.array_equal(a, b) for a, b in zip(mine.batch, theirs.batch, strict=True))


@pytest.mark.parametrize("updates", [1, 3])
def test_what_is_drawn_ahead_is_what_would_be_drawn_now(updates: int) -> None:
    ahead = BatchPrefetcher(filled(), np.random.default_rng(5), sample, updates)
    now = BatchPrefetcher(filled(), np.random.default_rng(5), sample, updates)
    for _ in range(3):
        ahead.draw()
        mine, theirs = ahead.take(), now.take()
        assert len(mine) == updates
        assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_step_that_comes_after_the_draw_is_not_in_it() -> None:
    replay = filled(steps=2)
    draws = BatchPrefetcher(replay, np.random.default_rng(5), partial(sample, size=64), 1)
    draws.draw()
    replay.add(np.array([99], np.float32), 99.0, False, np.zeros((12, 12, 3), np.uint8))
    assert 99 not in draws.take()[0].batch.action
    assert 99 in draws.take()[0].batch.action


def test_kept_observations_are_drawn_with_each_batch(tmp_path: Path) -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(-1, 12, 12, 9)
    outputs = Outputs(*(torch.arange(5.0)[:, None] for _ in range(3)))
    rehearsal = RehearsalSampler([store(tmp_path / "old.safetensors", "old", pixels, outputs)], 3)
    drawn, again = (BatchPrefetcher(filled(), np.random.default_rng(5), sample, 2, rehearsal).take() for _ in range(2))
    for mine, theirs in zip(drawn, again, strict=True):
        assert mine.rehearsal is not None
        assert theirs.rehearsal is not None
        assert mine.rehearsal.outputs.features.flatten().tolist() == mine.rehearsal.observations[:, 0, 0, 0].tolist()
        assert torch.equal(mine.rehearsal.observations, theirs.rehearsal.observations)


def test_the_random_state_repeats_what_is_drawn_but_not_taken() -> None:
    replay, rng = filled(), np.random.default_rng(5)
    draws = BatchPrefetcher(replay, rng, sample, 1)
    draws.take()
    draws.draw()
    resumed_rng = np.random.default_rng(0)
    resumed_rng.bit_generator.state = draws.random_state
    resumed = BatchPrefetcher(replay, resumed_rng, sample, 1)
    assert same(draws.take()[0], resumed.take()[0])
    assert draws.random_state == resumed.random_state == rng.bit_generator.state
