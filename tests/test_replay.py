"""The replay against a naive model that keeps every stack, and its files against damage."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlformer.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from ctrlformer.replay import Batch, Replay, ring_bytes

SIZE = 5  # height and width of the frames here
FEATURES = 6  # numbers of a frame, where features are stored in place of pictures


class Step(NamedTuple):
    episode: int
    first_frame: int  # number of the oldest frame in its stack
    stack: np.ndarray
    reward: float
    terminated: bool
    next_stack: np.ndarray


class Naive:
    """Every step ever added, with whole stacks; a step's number is its action."""

    def __init__(self, capacity: int, frame_stack: int) -> None:
        self.capacity, self.frame_stack = capacity, frame_stack
        self.steps: list[Step] = []
        self.frames = self.episodes = 0

    def begin(self, frame: np.ndarray) -> None:
        self.stack = [frame] * self.frame_stack
        self.start = self.frames
        self.frames += 1
        self.episodes += 1

    def add(self, reward: float, terminated: bool, frame: np.ndarray) -> None:
        before = np.concatenate(self.stack, axis=-1)
        self.stack = [*self.stack[1:], frame]
        after = np.concatenate(self.stack, axis=-1)
        oldest = max(self.frames - self.frame_stack, self.start)
        self.steps.append(Step(self.episodes, oldest, before, reward, terminated, after))
        self.frames += 1

    def held(self) -> set[int]:
        """The newest `capacity` steps, less those whose frames no longer fit in the ring."""
        slots = self.capacity + self.capacity // 8 + self.frame_stack + 1
        newest = range(max(0, len(self.steps) - self.capacity), len(self.steps))
        return {i for i in newest if self.steps[i].first_frame >= self.frames - slots}

    def expected(self, i: int, n_step: int, discount: float) -> tuple[float, float, np.ndarray]:
        """By the definition: sum over the steps of the same episode that exist."""
        chain = [s for s in self.steps[i : i + n_step] if s.episode == self.steps[i].episode]
        total = sum(discount**k * s.reward for k, s in enumerate(chain))
        return total, 0.0 if chain[-1].terminated else discount ** len(chain), chain[-1].next_stack


class Episode(NamedTuple):
    length: int
    terminated: bool


episodes = st.lists(st.builds(Episode, st.integers(0, 9), st.booleans()), min_size=1, max_size=8)


def play(
    replay: Replay,
    plan: list[Episode],
    rng: np.random.Generator,
    naive: Naive | None = None,
    features: int | None = None,
) -> int:
    """Add the episodes; returns how many steps that were."""
    count = 0
    for length, terminated in plan:
        if features is None:
            frames = rng.integers(0, 256, (length + 1, SIZE, SIZE, 3), dtype=np.uint8)
        else:
            frames = rng.random((length + 1, features), np.float32)
        rewards = rng.normal(size=length).astype(np.float32)
        replay.begin(frames[0])
        if naive:
            naive.begin(frames[0])
        for k in range(length):
            over = terminated and k == length - 1
            number = len(naive.steps) if naive else count
            replay.add(np.array([number], np.float32), float(rewards[k]), over, frames[k + 1])
            if naive:
                naive.add(float(rewards[k]), over, frames[k + 1])
            count += 1
    return count


def shifts_of(stack: np.ndarray, shift: int) -> list[np.ndarray]:
    padded = np.pad(stack, ((shift, shift), (shift, shift), (0, 0)), mode="edge")
    around = range(2 * shift + 1)
    return [padded[y : y + SIZE, x : x + SIZE] for y in around for x in around]


def same(a: Batch, b: Batch) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def draw(replay: Replay, seed: int = 0) -> Batch:
    return replay.sample(np.random.default_rng(seed), 64, n_step=3, shift=1)


@settings(max_examples=60, deadline=None)
@given(
    plan=episodes,
    capacity=st.integers(1, 30),
    frame_stack=st.integers(1, 4),
    n_step=st.integers(1, 4),
    shift=st.integers(0, 3),
    views=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    frames_on_device=st.booleans(),
)
def test_samples_are_what_a_list_of_stacks_would_give(
    plan: list[Episode],
    capacity: int,
    frame_stack: int,
    n_step: int,
    shift: int,
    views: tuple[int, int],
    frames_on_device: bool,
) -> None:
    replay = Replay(None, capacity, 1, SIZE, frame_stack, frames_on_device=frames_on_device)
    naive = Naive(capacity, frame_stack)
    play(replay, plan, np.random.default_rng(1), naive)
    held = naive.held()
    assert len(replay) == len(held)
    if not held:
        return
    batch = replay.sample(
        np.random.default_rng(2), 40, n_step=n_step, discount=0.9, shift=shift, views=views[0], next_views=views[1]
    )
    assert batch.observation.shape == (views[0], 40, SIZE, SIZE, 3 * frame_stack)
    assert batch.next_observation.shape == (views[1], 40, SIZE, SIZE, 3 * frame_stack)
    assert {int(a) for a in batch.action[:, 0]} <= held
    for b, number in enumerate(batch.action[:, 0].int().tolist()):
        reward, discount, next_stack = naive.expected(number, n_step, 0.9)
        assert batch.reward[b] == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert batch.discount[b] == pytest.approx(discount)
        for shown, stack in (
            (batch.observation[:, b], naive.steps[number].stack),
            (batch.next_observation[:, b], next_stack),
        ):
            for view in shown:
                assert any(np.array_equal(view, candidate) for candidate in shifts_of(stack, shift))


@settings(max_examples=30, deadline=None)
@given(
    before=episodes,
    after=episodes,
    more=episodes,
    capacity=st.integers(1, 60),
    frame_stack=st.integers(1, 4),
    frames_on_device=st.booleans(),
)
def test_restore_gives_the_content_at_the_flush_and_goes_on_alike(
    before: list[Episode],
    after: list[Episode],
    more: list[Episode],
    capacity: int,
    frame_stack: int,
    frames_on_device: bool,
) -> None:
    shape = (capacity, 1, SIZE, frame_stack)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        replay = Replay(folder, *shape)
        steps = play(replay, before, np.random.default_rng(1))
        position = replay.flush()
        expected = draw(replay) if len(replay) else None
        play(replay, after, np.random.default_rng(2))  # never part of the checkpoint
        replay.flush()
        restored = Replay.restore(folder, position, *shape, frames_on_device=frames_on_device)
        again = restored.flush()
        assert again == position
        assert same(draw(restored), expected) if expected else len(restored) == 0
        # The restored one, its files and a replay that never stopped all go the same way.
        memory = Replay(None, *shape)
        assert play(memory, before, np.random.default_rng(1)) == steps
        play(memory, more, np.random.default_rng(3))
        play(restored, more, np.random.default_rng(3))
        assert len(restored) == len(memory)
        final = Replay.restore(folder, restored.flush(), *shape)
        if len(memory):
            assert same(draw(restored), draw(memory))
            assert same(draw(final), draw(memory))


# Features in place of pictures


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


def test_an_open_episode_goes_on_after_restore(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE, 3), dtype=np.uint8)
    replays = [Replay(None, 10, 1, SIZE), Replay(tmp_path, 10, 1, SIZE)]
    for replay in replays:
        replay.begin(frames[0])
        for k in (1, 2, 3):
            replay.add(np.array([k]), 1.0, False, frames[k])
    replays[1] = Replay.restore(tmp_path, replays[1].flush(), 10, 1, SIZE)
    for replay in replays:
        replay.add(np.array([4]), 1.0, True, frames[4])
    assert same(draw(replays[0]), draw(replays[1]))
    with pytest.raises(RuntimeError, match="begin"):
        replays[1].add(np.array([5]), 1.0, False, frames[5])  # the episode is over


def test_old_segments_go_but_two_checkpoints_back_still_restores(tmp_path: Path) -> None:
    shape = (40, 1, SIZE, 3)
    replay = Replay(tmp_path, *shape)
    rng = np.random.default_rng(0)
    flushes = []
    for _ in range(20):
        play(replay, [Episode(15, False)], rng)
        flushes.append((replay.flush(), draw(replay)))
    # Ring (40), two flushes back (2 x 16) and parts of segments (16 each): far fewer than all 320 records.
    assert len(list(tmp_path.glob("*.seg"))) <= 8
    for back in (1, 2, 3):
        copy = tmp_path / f"copy{back}"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy*"))
        position, expected = flushes[-back]
        assert same(draw(Replay.restore(copy, position, *shape)), expected)


def test_a_new_replay_discards_what_its_folder_held(tmp_path: Path) -> None:
    play(old := Replay(tmp_path, 50, 1, SIZE), [Episode(40, False)], np.random.default_rng(0))
    old.flush()
    new = Replay(tmp_path, 50, 1, SIZE)
    assert not list(tmp_path.glob("*.seg"))
    assert len(Replay.restore(tmp_path, new.flush(), 50, 1, SIZE)) == 0


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
    batch = replay.sample(np.random.default_rng(0), 4, views=2, next_views=1)
    assert {x.device.type for x in batch} == {"meta"}
    assert [tuple(x.shape) for x in batch] == [(2, 4, SIZE, SIZE, 9), (4, 2), (4,), (4,), (1, 4, SIZE, SIZE, 9)]
    assert [x.dtype for x in batch] == [torch.uint8, torch.float32, torch.float32, torch.float32, torch.uint8]


def test_a_batch_stays_as_it_was_whatever_is_drawn_or_added_after_it() -> None:
    replay = Replay(None, 20, 1, SIZE)
    play(replay, [Episode(15, False)], np.random.default_rng(0))
    batch = draw(replay, seed=1)
    before = Batch(*(x.clone() for x in batch))
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


def test_a_position_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    replay = Replay(tmp_path, 30, 1, SIZE)
    play(replay, [Episode(50, False)], np.random.default_rng(0))
    position = replay.flush()
    wrong = [
        {},
        {"format": 2},
        {"capacity": 31},
        {"frames": -1},
        {"frames": True},
        {"frames": 2**70},
        {"frames": position["frames"] + 1},
        {"first": None},
        {"first": 0},
        {"steps": position["steps"] - 1},
        {"steps_at_first": position["oldest"] + 1},
        {"oldest": position["steps"] + 1},
        {"oldest": "0"},
    ]
    for change in wrong:
        with pytest.raises(CheckpointError):
            Replay.restore(tmp_path, {**position, **change} if change else {}, 30, 1, SIZE)
    assert len(Replay.restore(tmp_path, position, 30, 1, SIZE)) == 30  # all those tries have damaged nothing


def test_memory_only_has_no_position() -> None:
    assert Replay(None, 10, 1, SIZE).flush() == {}


def test_a_full_disk_refuses_the_step_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(tmp_path, 100, 1, SIZE)
    memory = Replay(None, 100, 1, SIZE)
    frames = np.random.default_rng(0).integers(0, 256, (60, SIZE, SIZE, 3), dtype=np.uint8)
    replay.begin(frames[0])
    memory.begin(frames[0])
    refused = []
    for k in range(1, 60):
        action = np.array([k])
        with monkeypatch.context() as patch:
            if k % 3:
                patch.setattr("ctrlformer.segments.open_regular", no_space)
            try:
                replay.add(action, 1.0, False, frames[k])
            except RunError as error:
                refused.append(str(error))
                patch.undo()
                replay.add(action, 1.0, False, frames[k])  # once there is room again
        memory.add(action, 1.0, False, frames[k])
    assert refused
    assert all("No space left on device" in message for message in refused)
    with monkeypatch.context() as patch:
        patch.setattr("ctrlformer.segments.open_regular", no_space)
        with pytest.raises(RunError, match="No space left"):
            replay.flush()
    assert same(draw(Replay.restore(tmp_path, replay.flush(), 100, 1, SIZE)), draw(memory))


def no_space(path: Path, flags: int) -> int:
    raise OSError(28, "No space left on device", str(path))
