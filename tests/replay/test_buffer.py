"""What the replay samples, against a naive model that keeps every stack; what it refuses; what it takes of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_replays import SIZE, Episode, Naive, draw, episodes, play, same

from ctrlformer.errors import ConfigError, NonFiniteError
from ctrlformer.replay import Batch, Replay, ring_bytes


def shifts_of(stack: np.ndarray, shift: int) -> list[np.ndarray]:
    padded = np.pad(stack, ((shift, shift), (shift, shift), (0, 0)), mode="edge")
    around = range(2 * shift + 1)
    return [padded[y : y + SIZE, x : x + SIZE] for y in around for x in around]


@settings(max_examples=60, deadline=None)
@given(
    plan=episodes,
    capacity=st.integers(1, 30),
    frame_stack=st.integers(1, 4),
    n_step=st.integers(1, 4),
    shift=st.integers(0, 3),
    views=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    past=st.integers(0, 3),
    frames_on_device=st.booleans(),
)
def test_samples_are_what_a_list_of_stacks_would_give(
    plan: list[Episode],
    capacity: int,
    frame_stack: int,
    n_step: int,
    shift: int,
    views: tuple[int, int],
    past: int,
    frames_on_device: bool,
) -> None:
    replay = Replay(None, capacity, 1, SIZE, frame_stack, frames_on_device=frames_on_device)
    naive = Naive(capacity, frame_stack)
    play(replay, plan, np.random.default_rng(1), naive)
    held = naive.held()
    assert len(replay) == len(held)
    if not held:
        return
    v, w = views
    batch = replay.sample(
        np.random.default_rng(2), 40, n_step=n_step, discount=0.9, shift=shift, views=v, next_views=w, past=past
    )
    assert (batch.past is None) == (batch.next_past is None) == (past == 0)
    assert batch.observation.shape == (views[0], 40, SIZE, SIZE, 3 * frame_stack)
    assert batch.next_observation.shape == (views[1], 40, SIZE, SIZE, 3 * frame_stack)
    assert {int(a) for a in batch.action[:, 0]} <= held
    for b, number in enumerate(batch.action[:, 0].int().tolist()):
        reward, discount, next_stack = naive.expected(number, n_step, 0.9)
        assert batch.reward[b] == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert batch.discount[b] == pytest.approx(discount)
        if batch.past is not None and batch.next_past is not None:
            assert batch.past[b].tolist() == naive.past(number, past)
            assert batch.next_past[b].tolist() == naive.past(number, past, ahead=n_step)
        for shown, stack in (
            (batch.observation[:, b], naive.steps[number].stack),
            (batch.next_observation[:, b], next_stack),
        ):
            for view in shown:
                assert any(np.array_equal(view, candidate) for candidate in shifts_of(stack, shift))


def test_sampling_is_uniform_over_steps_and_shifts_and_views_differ() -> None:
    replay = Replay(None, 20, 1, SIZE)
    play(replay, [Episode(7, True), Episode(30, False)], np.random.default_rng(0))
    batch = replay.sample(np.random.default_rng(1), 20_000, shift=1, views=2, next_views=1)
    counts = np.bincount(batch.action[:, 0].int(), minlength=37)[-20:]
    assert counts.sum() == 20_000  # only the newest 20
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    # One step, whose 9 shifts all differ: each must come a ninth of the time, independently in both views.
    chosen = batch.action[:, 0].numpy() == 30
    views = batch.observation.numpy()
    kinds = [np.unique(view[chosen].reshape(chosen.sum(), -1), axis=0, return_inverse=True)[1] for view in views]
    joint = np.bincount(9 * kinds[0].ravel() + kinds[1].ravel(), minlength=81)
    expected = chosen.sum() / 81
    assert len(joint) == 81
    assert np.abs(joint - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize("same_shift", [True, False])
def test_the_next_observation_is_shifted_as_the_one_before_if_told_so(same_shift: bool) -> None:
    """Where nothing moves, both then look alike."""
    replay = Replay(None, 20, 1, SIZE)
    still = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    replay.begin(still)
    for _ in range(10):
        replay.add(np.zeros(1, np.float32), 0.0, False, still)
    for views, next_views in ((1, 1), (2, 1), (2, 2)):
        batch = replay.sample(
            np.random.default_rng(1), 50, shift=2, views=views, next_views=next_views, same_shift=same_shift
        )
        assert batch.next_observation.shape[0] == next_views
        assert torch.equal(batch.observation[:next_views], batch.next_observation) == same_shift
    assert len(np.unique(batch.observation.reshape(100, -1).numpy(), axis=0)) > 10


def test_the_generator_alone_decides() -> None:
    replay = Replay(None, 50, 1, SIZE)
    play(replay, [Episode(40, False)], np.random.default_rng(0))
    assert same(draw(replay, seed=5), draw(replay, seed=5))
    assert not same(draw(replay, seed=5), draw(replay, seed=6))


def test_a_hundred_thousand_steps_fit_in_2600_megabytes_and_empty_memory_is_free() -> None:
    assert ring_bytes(100_000, action_dim=38) <= 2_600_000_000
    small = Replay(None, 100, 6)
    assert ring_bytes(100, 6) == sum(a.nbytes for a in vars(small).values() if isinstance(a, np.ndarray))
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096  # noqa: E731
    before = resident()
    large = Replay(None, 100_000, 6)
    large.begin(np.zeros((84, 84, 3), np.uint8))
    assert resident() - before < 50_000_000


def test_a_replay_beyond_the_address_space_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"GB: lower training.replay_capacity"):
        Replay(None, 10**14, 1)


def test_a_device_without_room_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", no_room)
    with pytest.raises(ConfigError, match=r"GB: lower training.replay_capacity"):
        Replay(None, 100, 1, frames_on_device=True)


def test_batches_come_on_the_device_that_learns() -> None:
    # A meta tensor has a device, a shape and a type like any other, and needs no hardware.
    replay = Replay(None, 50, 2, SIZE, device="meta")
    frame = np.zeros((SIZE, SIZE, 3), np.uint8)
    replay.begin(frame)
    replay.add(np.zeros(2), 1.0, False, frame)
    batch = [x for x in replay.sample(np.random.default_rng(0), 4, views=2, next_views=1, past=3) if x is not None]
    assert {x.device.type for x in batch} == {"meta"}
    shapes = [(2, 4, SIZE, SIZE, 9), (4, 2), (4,), (4,), (1, 4, SIZE, SIZE, 9), (4, 6), (4, 6)]
    assert [tuple(x.shape) for x in batch] == shapes
    assert [x.dtype for x in batch if x.dtype != torch.float32] == [torch.uint8, torch.uint8]


def test_a_batch_stays_as_it_was_whatever_is_drawn_or_added_after_it() -> None:
    replay = Replay(None, 20, 1, SIZE)
    play(replay, [Episode(15, False)], np.random.default_rng(0))
    batch = draw(replay, seed=1)
    before = Batch(*(x if x is None else x.clone() for x in batch))
    held = [draw(replay, seed) for seed in range(2, 8)]
    play(replay, [Episode(30, False)], np.random.default_rng(1))
    assert same(batch, before)
    assert len({x.observation.data_ptr() for x in [batch, *held]}) == 7


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, 1e39])
def test_a_reward_that_is_not_finite_is_refused_and_changes_nothing(reward: float) -> None:
    replay = Replay(None, 10, 1, SIZE)
    play(replay, [Episode(3, False)], np.random.default_rng(0))
    with pytest.raises(NonFiniteError, match="reward"):
        replay.add(np.array([0]), reward, False, np.zeros((SIZE, SIZE, 3), np.uint8))
    assert len(replay) == 3


def test_wrong_shapes_are_refused() -> None:
    replay = Replay(None, 10, 2, SIZE)
    frame = np.zeros((SIZE, SIZE, 3), np.uint8)
    with pytest.raises(ValueError, match="expected uint8"):
        replay.begin(frame.astype(np.float32))
    with pytest.raises(ValueError, match="expected uint8"):
        replay.begin(frame[1:])
    with pytest.raises(RuntimeError, match="begin"):
        replay.add(np.zeros(2), 0.0, False, frame)
    replay.begin(frame)
    with pytest.raises(ValueError, match=r"expected \(2,\)"):
        replay.add(np.zeros(3), 0.0, False, frame)
    with pytest.raises(NonFiniteError, match="action"):
        replay.add(np.array([0, np.nan]), 0.0, False, frame)
    with pytest.raises(RuntimeError, match="empty"):
        replay.sample(np.random.default_rng(0), 1)


@settings(max_examples=40, deadline=None)
@given(plan=episodes, capacity=st.integers(1, 30), count=st.integers(1, 9))
def test_the_newest_episode_is_summed_to_its_end(plan: list[Episode], capacity: int, count: int) -> None:
    replay, naive = Replay(None, capacity, 1, SIZE, 3), Naive(capacity, 3)
    play(replay, plan, np.random.default_rng(1), naive)
    if not len(replay):
        return
    batch = replay.newest_episode(count, 0.9)
    numbers = batch.action[:, 0].int().tolist()
    assert numbers == sorted(numbers)
    assert len(numbers) <= count
    assert set(numbers) <= naive.held()
    for b, number in enumerate(numbers):
        reward, discount, next_stack = naive.expected(number, capacity, 0.9)
        assert batch.reward[b] == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert batch.discount[b] == pytest.approx(discount)
        assert (batch.next_observation[0, b].numpy() == next_stack).all()
        assert (batch.next_observation[0, b] == batch.next_observation[0, 0]).all()
