"""Sequences of the replay: within an episode, in order, and never of what is overwritten."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_replays import Episode, episodes

from ctrlformer.replay import Replay, Sequences

SIZE = 4


def picture(number: int) -> np.ndarray:
    """A frame that tells its number."""
    return np.full((SIZE, SIZE, 3), number % 256, np.uint8)


def played(replay: Replay, plan: list[Episode]) -> list[tuple[int, int]]:
    """Every step's episode and the number of the frame it was taken at; its action is its number, its reward half."""
    steps: list[tuple[int, int]] = []
    frame = 0
    for number, (length, terminated) in enumerate(plan):
        replay.begin(picture(frame))
        for k in range(length):
            step = len(steps)
            steps.append((number, frame))
            frame += 1
            replay.add(np.array([step], np.float32), step / 2, terminated and k == length - 1, picture(frame))
        frame += 1
    return steps


@settings(max_examples=80, deadline=None)
@given(
    plan=episodes,
    capacity=st.integers(1, 30),
    frame_stack=st.integers(1, 4),
    length=st.integers(2, 7),
    frames_on_device=st.booleans(),
)
def test_a_sequence_is_a_stretch_of_one_episode_that_is_still_held(
    plan: list[Episode], capacity: int, frame_stack: int, length: int, frames_on_device: bool
) -> None:
    replay = Replay(None, capacity, 1, SIZE, frame_stack, frames_on_device=frames_on_device)
    steps = played(replay, plan)
    if not len(replay):
        return
    held = range(len(steps) - len(replay), len(steps))
    batch = replay.sequences(np.random.default_rng(0), 20, length)
    longest = max(Counter(steps[number][0] for number in held).values())
    count = min(length - 1, longest)
    assert batch.frames.shape == (20, count + 1, SIZE, SIZE, 3)
    assert batch.action.shape == (20, count, 1)
    for frames, actions, rewards in zip(*batch, strict=True):
        numbers = [int(number) for number in actions[:, 0]]
        assert numbers == list(range(numbers[0], numbers[0] + count))
        assert set(numbers) <= set(held)
        assert len({steps[number][0] for number in numbers}) == 1
        first = steps[numbers[0]][1]
        assert frames[:, 0, 0, 0].tolist() == [frame % 256 for frame in range(first, first + count + 1)]
        assert bool((frames == frames[:, :1, :1, :1]).all())
        assert rewards.tolist() == [number / 2 for number in numbers]


def test_every_place_where_a_sequence_fits_is_as_likely() -> None:
    replay = Replay(None, 50, 1, SIZE)
    played(replay, [Episode(5, False), Episode(2, False), Episode(4, True)])
    starts = replay.sequences(np.random.default_rng(0), 3000, 4).action[:, 0, 0].int().tolist()
    assert {0, 1, 2, 7, 8} == set(starts)  # none in the episode of two steps
    assert all(abs(count - 600) < 100 for count in Counter(starts).values())


def test_the_same_generator_draws_the_same_and_memory_is_the_batchs_own() -> None:
    replay = Replay(None, 9, 1, SIZE)
    played(replay, [Episode(9, False)])
    one, two = (replay.sequences(np.random.default_rng(3), 5, 3) for _ in range(2))
    kept = Sequences(*(part.clone() for part in one))
    played(replay, [Episode(9, False), Episode(9, False)])
    for part, again, before in zip(one, two, kept, strict=True):
        assert part.equal(again)
        assert part.equal(before)


def test_an_empty_replay_has_none() -> None:
    with pytest.raises(RuntimeError, match="add a step first"):
        Replay(None, 9, 1, SIZE).sequences(np.random.default_rng(0), 1, 3)
