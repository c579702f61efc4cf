"""Features in place of pictures in the replay."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_replays import SIZE, Episode, Naive, draw, episodes, play, same

from ctrlformer.errors import CheckpointError, NonFiniteError
from ctrlformer.replay import Replay, ring_bytes

FEATURES = 6  # numbers of a frame, where features are stored in place of pictures


@settings(max_examples=40, deadline=None)
@given(
    plan=episodes,
    capacity=st.integers(1, 30),
    frame_stack=st.integers(1, 4),
    n_step=st.integers(1, 3),
    on_device=st.booleans(),
)
def test_stored_features_are_stacked_like_frames_and_not_shifted(
    plan: list[Episode], capacity: int, frame_stack: int, n_step: int, on_device: bool
) -> None:
    replay = Replay(None, capacity, 1, SIZE, frame_stack, features=FEATURES, frames_on_device=on_device)
    naive = Naive(capacity, frame_stack)
    play(replay, plan, np.random.default_rng(1), naive, FEATURES)
    if not naive.held():
        return
    batch = replay.sample(np.random.default_rng(2), 20, n_step=n_step, discount=0.9, shift=3, views=1, next_views=2)
    assert batch.observation.shape == (1, 20, frame_stack, FEATURES)
    assert batch.next_observation.shape == (2, 20, frame_stack, FEATURES)
    for b, number in enumerate(batch.action[:, 0].int().tolist()):
        _, _, next_stack = naive.expected(number, n_step, 0.9)
        assert np.array_equal(batch.observation[0, b].flatten(), naive.steps[number].stack)
        for view in batch.next_observation[:, b]:
            assert np.array_equal(view.flatten(), next_stack)
    shown = replay.observations(np.random.default_rng(3), 5)
    stacks = [naive.steps[number].stack for number in naive.held()]
    assert all(any(np.array_equal(stack.flatten(), one) for one in stacks) for stack in shown)


@settings(max_examples=20, deadline=None)
@given(before=episodes, after=episodes, capacity=st.integers(1, 40), on_device=st.booleans())
def test_stored_features_come_back_bit_for_bit(
    before: list[Episode], after: list[Episode], capacity: int, on_device: bool
) -> None:
    shape = (capacity, 1, SIZE, 3)
    with tempfile.TemporaryDirectory() as name:
        replay = Replay(Path(name), *shape, features=FEATURES)
        play(replay, before, np.random.default_rng(1), features=FEATURES)
        position = replay.flush()
        expected = draw(replay) if len(replay) else None
        play(replay, after, np.random.default_rng(2), features=FEATURES)
        replay.flush()
        restored = Replay.restore(Path(name), position, *shape, features=FEATURES, frames_on_device=on_device)
        assert restored.flush() == position
        assert same(draw(restored), expected) if expected else len(restored) == 0


def test_features_take_their_own_memory_and_disk(tmp_path: Path) -> None:
    replay = Replay(tmp_path, 100, 6, features=2048)
    held = [x for x in vars(replay).values() if isinstance(x, np.ndarray | torch.Tensor)]
    assert ring_bytes(100, 6, features=2048) == sum(x.nbytes for x in held)
    assert ring_bytes(100_000, 6, features=2048) < 1_000_000_000
    replay.begin(np.zeros(2048, np.float32))
    replay.flush()
    (segment,) = tmp_path.glob("*.seg")
    assert segment.stat().st_size == 1 + 4 + 6 * 4 + 2048 * 4 + 4  # flags, reward, action, features, checksum


def test_pictures_and_features_are_not_taken_for_each_other(tmp_path: Path) -> None:
    picture, features = np.zeros((SIZE, SIZE, 3), np.uint8), np.zeros(FEATURES, np.float32)
    replay = Replay(tmp_path, 10, 1, SIZE, features=FEATURES)
    for wrong in (picture, features.astype(np.float64), features[1:]):
        with pytest.raises(ValueError, match=r"expected float32 \(6,\)"):
            replay.begin(wrong)
    with pytest.raises(NonFiniteError, match=r"features of a frame.*encoder\.weights"):
        replay.begin(np.full(FEATURES, np.nan, np.float32))
    replay.begin(features)
    position = replay.flush()
    for other in (None, FEATURES + 1):
        with pytest.raises(CheckpointError, match="made with features 6, not"):
            Replay.restore(tmp_path, position, 10, 1, SIZE, features=other)
