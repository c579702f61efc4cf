"""One task's experience: a ring of single frames, sampled as randomly shifted stacks.

A frame is stored once, although it is part of several stacked observations: as a uint8 picture, or as the features
that a frozen network makes of it, which are cut into stacks alike but cannot be shifted. Frames and steps are
numbered from 0 for ever; number modulo ring size is the place in memory. On disk every frame is one record of
an append-only log, so a checkpoint costs only an fsync, and its position says how much of the log belongs to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.errors import CheckpointError, ConfigError, NonFiniteError
from ctrlformer.replay.rings import DeviceRing, FeatureRing, FrameRing, HostRing, to_device
from ctrlformer.replay.segment_log import SegmentLog
from ctrlformer.replay.stack_kernel import CHANNELS
from ctrlformer.storage.files import JSON

FORMAT = 1
FIRST, TERMINATED = 1, 2  # flags of a record: an episode's first frame; the step that ended the episode for good
FALLBACKS = 2  # checkpoints before the newest whose records stay on disk
LARGEST_REWARD = float(np.finfo(np.float32).max)  # beyond it, and for NaN, a comparison says no

Record = Any  # one element of an array of `_record_type`, or such an array without dimensions


class Batch(NamedTuple):
    """Steps of the past, as the learner wants them; its memory belongs to nobody else."""

    observation: Tensor  # (V, B, 84, 84, 9) uint8  V independent random shifts of s; or (V, B, 3, features)
    action: Tensor  # (B, A) float32
    reward: Tensor  # (B,) float32  discounted sum over the steps
    discount: Tensor  # (B,) float32  discount ** steps really summed; 0 where the episode terminated
    next_observation: Tensor  # the same for W shifts of the state after those steps
    past: Tensor | None = None  # (B, K * A) the last K actions before s, newest first; zeros before the episode
    next_past: Tensor | None = None  # the same for the state after those steps

    def to(self, device: torch.device) -> Batch:
        moved: dict[str, Any] = {
            name: None if part is None else part.to(device, non_blocking=True) for name, part in self._asdict().items()
        }
        return Batch(**moved)


class Sequences(NamedTuple):
    """Stretches of the past, each within one episode; its memory belongs to nobody else."""

    frames: Tensor  # (B, L, 84, 84, 3) uint8
    action: Tensor  # (B, L - 1, A) float32  action t led from frame t to frame t + 1
    reward: Tensor  # (B, L - 1) float32  what it earned


class Replay:
    """Holds the newest `capacity` steps of one task.

    A folder makes it durable: `flush` when a checkpoint is written, `restore` to continue from one. A new
    `Replay` is empty and discards what its folder held. Episodes shorter than about 8 steps on average need
    more frames than the ring has, so fewer steps fit.

    Batches come on `device`. With `frames_on_device` the frames are kept there, and not in the machine's memory
    (`system.memory.fits_on_device` says whether they fit): the same batches, but only their numbers travel. Any thread
    may call, but one at a time.

    With `features` a frame is that many float32 numbers in place of a picture.

    >>> replay = Replay(None, capacity=10, action_dim=1, image_size=4)
    >>> replay.begin(np.zeros((4, 4, 3), np.uint8))
    >>> replay.add(np.array([0.5]), 1.0, False, np.ones((4, 4, 3), np.uint8))
    >>> batch = replay.sample(np.random.default_rng(0), 2, shift=1)
    >>> batch.observation.shape, batch.reward.tolist()
    (torch.Size([2, 2, 4, 4, 9]), [1.0, 1.0])
    """

    def __init__(
        self,
        folder: Path | None,
        capacity: int,
        action_dim: int,
        image_size: int = 84,
        frame_stack: int = 3,
        *,
        features: int | None = None,
        device: torch.device | str = "cpu",
        frames_on_device: bool = False,
    ) -> None:
        if min(capacity, action_dim, image_size, frame_stack) < 1:
            raise ConfigError("replay: capacity, action_dim, image_size and frame_stack must be at least 1")
        self._shape: dict[str, Any] = {
            "capacity": capacity,
            "action_dim": action_dim,
            "image_size": image_size,
            "frame_stack": frame_stack,
            "features": features,
        }
        self._capacity, self._stack, self._device = capacity, frame_stack, torch.device(device)
        self._slots = _slots(capacity, frame_stack)
        self._record = _record_type(action_dim, image_size, features)
        self._ring = self._new_ring(frames_on_device)
        self._frame = self._ring.frames
        self._action = np.zeros((capacity, action_dim), np.float32)
        self._reward = np.zeros(capacity, np.float32)
        self._terminated = np.zeros(capacity, np.bool_)
        self._frame_of = np.zeros(capacity, np.int64)  # number of the frame a step was taken at
        self._episode_of = np.zeros(capacity, np.int64)  # number of the first frame of its episode
        self._frames = self._steps = self._oldest = 0  # frames and steps so far; the oldest step still held
        self._episode = 0  # number of the newest episode's first frame
        self._open = False
        self._earlier: deque[int] = deque(maxlen=FALLBACKS)  # first records that the last flushes need
        self._log = None if folder is None else self._new_log(folder)
        if self._log is not None:
            self._log.cut(0)

    def _new_ring(self, on_device: bool) -> FrameRing:
        size, features = self._shape["image_size"], self._shape["features"]
        try:
            if features is not None:
                return FeatureRing(self._slots, features, self._device, on_device)
            if on_device:
                return DeviceRing(self._slots, size, self._device)
            return HostRing(self._slots, size, self._device)
        except (MemoryError, ValueError, torch.OutOfMemoryError):
            gigabytes = ring_bytes(**self._shape) / 1e9
            raise ConfigError(
                f"a replay of {self._capacity} steps needs {gigabytes:.1f} GB: lower training.replay_capacity"
            ) from None

    def _new_log(self, folder: Path) -> SegmentLog:
        # Segments small beside the ring: the oldest go one by one as the ring moves on.
        return SegmentLog(folder, self._record.itemsize, per_segment=max(16, min(1024, self._slots // 8)))

    def __len__(self) -> int:
        """Steps that can be sampled."""
        return self._steps - self._oldest

    def begin(self, frame: NDArray[Any]) -> None:
        """An episode's first frame, (84, 84, 3) or (features,)."""
        self._check_frame(frame)
        self._append(FIRST, np.zeros_like(self._action[0]), 0.0, frame)

    def add(self, action: NDArray[np.float32], reward: float, terminated: bool, frame: NDArray[Any]) -> None:
        """A step: the action taken, what it earned, and the newest frame after it."""
        if not self._open:
            raise RuntimeError("Replay.add before Replay.begin: every episode starts with its first frame")
        self._check_frame(frame)
        action = np.asarray(action, np.float32)
        if action.shape != self._action.shape[1:]:
            raise ValueError(f"action has shape {action.shape}, expected {self._action.shape[1:]}")
        if not (abs(reward) <= LARGEST_REWARD and np.isfinite(action).all()):
            raise NonFiniteError(f"reward {reward} with action {action.tolist()}: not stored, check the environment")
        self._append(TERMINATED if terminated else 0, action, reward, frame)

    def _check_frame(self, frame: NDArray[Any]) -> None:
        stored = self._record["frame"]
        if frame.dtype != stored.base or frame.shape != stored.shape:
            raise ValueError(f"frame is {frame.dtype} {frame.shape}, expected {stored.base} {stored.shape}")
        if frame.dtype != np.uint8 and not np.isfinite(frame).all():
            raise NonFiniteError("the features of a frame are not finite: not stored, check encoder.weights")

    def _append(self, flags: int, action: NDArray[np.float32], reward: float, frame: NDArray[Any]) -> None:
        record = np.empty((), self._record)
        record["flags"], record["action"], record["reward"], record["frame"] = flags, action, reward, frame
        if self._log is not None:
            self._log.append(record.tobytes())
        self._remember(record)

    def _remember(self, record: Record, first: bool = False) -> None:
        """Take one record into memory, as an episode's first if told so; `restore` passes through here as well."""
        flags = int(record["flags"])
        if first or flags & FIRST:
            self._episode = self._frames
        else:
            place = self._steps % self._capacity
            self._action[place], self._reward[place] = record["action"], record["reward"]
            self._terminated[place] = bool(flags & TERMINATED)
            self._frame_of[place], self._episode_of[place] = self._frames - 1, self._episode
            self._steps += 1
        self._ring.write(self._frames % self._slots, record["frame"])
        self._frames += 1
        self._open = not flags & TERMINATED
        self._forget()

    def _forget(self) -> None:
        """Let go of steps beyond the capacity, and of those whose stack has lost a frame to the ring."""
        self._oldest = max(self._oldest, self._steps - self._capacity)
        while self._oldest < self._steps and self._first_needed() < self._frames - self._slots:
            self._oldest += 1

    def _first_needed(self) -> int:
        """The oldest frame that the steps held, or the next step, can show."""
        if self._oldest == self._steps:
            return max(self._frames - self._stack, self._episode, 0)
        place = self._oldest % self._capacity
        return int(max(self._frame_of[place] - self._stack + 1, self._episode_of[place]))

    def sample(
        self,
        rng: np.random.Generator,
        batch_size: int,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        shift: int = 4,
        views: int = 2,
        next_views: int = 2,
        same_shift: bool = False,
        past: int = 0,
    ) -> Batch:
        """Steps drawn uniformly, each observation shifted by up to `shift` pixels (edges repeated), anew per view, with
        the `past` actions before it. With `same_shift` the views of s' are shifted as those of s. Features are not
        shifted.

        The sum of `n_step` rewards stops early at the end of the episode, or at the newest step.
        """
        if not len(self):
            raise RuntimeError("Replay.sample on an empty replay: add a step first")
        step = rng.integers(self._oldest, self._steps, size=batch_size)  # (B,)
        drawn = views if same_shift else views + next_views
        offset = rng.integers(-shift, shift + 1, size=(drawn, batch_size, 2))  # (V or V + W, B, y and x)
        if same_shift:
            offset = np.concatenate([offset, offset[:next_views]])  # (V + W, B, y and x)
        return self._batch(step, offset, views, n_step, discount, past)

    def newest_episode(self, count: int, discount: float, past: int = 0) -> Batch:
        """At most `count` steps, evenly spaced, of the newest episode, unshifted. Rewards are summed to its end,
        so that all have the same next observation."""
        if not len(self):
            raise RuntimeError("Replay.newest_episode of an empty replay: add a step first")
        newest = (self._steps - 1) % self._capacity
        length = min(len(self), int(self._frame_of[newest] - self._episode_of[newest]) + 1)
        first = self._steps - length
        step = first + np.linspace(0, length - 1, min(count, length)).astype(np.int64)  # (B,)
        return self._batch(step, np.zeros((2, len(step), 2), np.int64), 1, length, discount, past)

    def _batch(
        self, step: NDArray[np.int64], offset: NDArray[np.int64], views: int, n_step: int, discount: float, past: int
    ) -> Batch:
        """The steps, and after `views` of the offsets (V + W, B, 2) the states that follow them."""
        place = step % self._capacity
        reward, bootstrap, after = self._returns(step, n_step, discount)
        newest = np.stack([self._frame_of[place]] * views + [after] * (len(offset) - views))  # (V + W, B)
        observations = self._stacks(newest, self._episode_of[place], offset)
        return Batch(
            observation=observations[:views],
            action=to_device(self._action[place], self._device),
            reward=to_device(reward, self._device),
            discount=to_device(bootstrap, self._device),
            next_observation=observations[views:],
            past=self._past(step, self._episode_of[place], past),
            next_past=self._past(step + after - self._frame_of[place], self._episode_of[place], past),
        )

    def _past(self, step: NDArray[np.int64], episode: NDArray[np.int64], count: int) -> Tensor | None:
        """The `count` actions before these steps (B,) of episodes (B,), newest first: (B, count * A). What lies before
        the episode, or before the oldest step held, is zero."""
        if not count:
            return None
        before = step[:, None] - np.arange(1, count + 1)  # (B, K)
        place = before % self._capacity
        known = (before >= self._oldest) & (self._episode_of[place] == episode[:, None])
        return to_device((self._action[place] * known[..., None]).reshape(len(step), -1), self._device)

    def sequences(self, rng: np.random.Generator, batch_size: int, length: int) -> Sequences:
        """Stretches of `length` frames, or of as many as the longest episode held has; every place where one fits is
        equally likely."""
        if not len(self):
            raise RuntimeError("Replay.sequences on an empty replay: add a step first")
        episode = self._episode_of[np.arange(self._oldest, self._steps) % self._capacity]  # of every step held
        count = min(length - 1, int(np.unique(episode, return_counts=True)[1].max()))  # steps in a stretch
        fits = np.flatnonzero(episode[: len(episode) - count + 1] == episode[count - 1 :])
        first = self._oldest + rng.choice(fits, size=batch_size)  # (B,)
        place = (first[:, None] + np.arange(count)) % self._capacity  # (B, L - 1)
        frame = self._frame_of[place[:, :1]] + np.arange(count + 1)  # (B, L)
        still = np.zeros((frame.size, 2), np.int64)
        frames = self._ring.stacks((frame % self._slots).reshape(-1, 1), still)
        return Sequences(
            frames=frames.view(*frame.shape, *frames.shape[1:]),
            action=to_device(self._action[place], self._device),
            reward=to_device(self._reward[place], self._device),
        )

    def observations(self, rng: np.random.Generator, count: int) -> Tensor:
        """(N, 84, 84, 9), or (N, 3, features): unshifted observations of different steps, `count` or all there are."""
        step = self._oldest + rng.choice(len(self), size=min(count, len(self)), replace=False)  # (N,)
        place = step % self._capacity
        still = np.zeros((1, len(step), 2), np.int64)
        return self._stacks(self._frame_of[place][None], self._episode_of[place], still)[0]

    def _returns(
        self, step: NDArray[np.int64], n_step: int, discount: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        """Discounted reward sums, the factor for the value after them, and the frame reached."""
        start = step % self._capacity
        total = np.zeros(len(step))  # (B,)
        factor = np.ones(len(step))  # (B,)
        count = np.zeros(len(step), np.int64)  # (B,) steps really summed
        going = np.ones(len(step), np.bool_)  # (B,)
        for ahead in range(n_step):
            place = (step + ahead) % self._capacity
            going &= (step + ahead < self._steps) & (self._episode_of[place] == self._episode_of[start])
            total += np.where(going, factor * self._reward[place], 0.0)
            factor = np.where(going, factor * discount, factor)
            count += going
        last = (step + count - 1) % self._capacity
        bootstrap = np.where(self._terminated[last], 0.0, factor)
        return total.astype(np.float32), bootstrap.astype(np.float32), self._frame_of[start] + count

    def _stacks(self, newest: NDArray[np.int64], episode: NDArray[np.int64], offset: NDArray[np.int64]) -> Tensor:
        """(V, B, 84, 84, 9), or (V, B, 3, features): the frames up to `newest`; before an episode's start its first
        frame is repeated."""
        slots = self._stack_slots(newest, episode)
        stacks = self._ring.stacks(slots.reshape(-1, self._stack), offset.reshape(-1, 2))
        return stacks.view(*newest.shape, *stacks.shape[1:])

    def _stack_slots(self, newest: NDArray[np.int64], episode: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slots of the frames up to `newest` (..., B): (..., B, stack)."""
        back = np.arange(self._stack - 1, -1, -1)
        slots: NDArray[np.int64] = np.maximum(newest[..., None] - back, episode[:, None]) % self._slots
        return slots

    def flush(self) -> dict[str, JSON]:
        """Make everything added durable; the answer, stored in a checkpoint, is what `restore` needs.

        Records that neither this checkpoint nor the two before it can need are deleted: should writing this one
        fail, there are still two to go back to. Memory only: `{}`.
        """
        if self._log is None:
            return {}
        first = self._first_needed()
        self._log.flush()
        if len(self._earlier) == FALLBACKS:
            self._log.discard_before(self._earlier[0])
        if first not in self._earlier:
            self._earlier.append(first)
        return {
            "format": FORMAT,
            **self._shape,
            "frames": self._frames,
            "steps": self._steps,
            "oldest": self._oldest,
            "first": first,  # records before this one are not read
            "steps_at_first": self._steps_at(first),
        }

    def _steps_at(self, first: int) -> int:
        """The number of steps when frame `first`, from `_first_needed`, had just come: all since are one episode's."""
        if not self._frames:
            return 0
        shown = self._frames - 1 if self._oldest == self._steps else int(self._frame_of[self._oldest % self._capacity])
        return self._oldest - (shown - first)

    @classmethod
    def restore(
        cls,
        folder: Path,
        position: Mapping[str, JSON],
        *shape: int,
        **options: Any,
    ) -> Replay:
        """Return exactly the content at the `flush` that returned `position`; what was logged after it is dropped.

        `shape` and `options` are those of a new `Replay`, after its folder. A damaged or missing file is a
        `CheckpointError` that names it, and then nothing is changed.
        """
        self = cls(None, *shape, **options)
        at = _read_position(folder, position, self._shape)
        self._log = self._new_log(folder)
        self._frames, self._steps, self._oldest = at.first, at.steps_at_first, at.oldest
        for data in self._log.read(at.first, at.frames):
            # Of the first record only the frame counts: the step that led to it is older than the oldest held.
            self._remember(np.frombuffer(data, self._record)[0], first=self._frames == at.first)
        if self._steps != at.steps:
            raise CheckpointError(f"{folder} does not fit its checkpoint: {self._steps} steps instead of {at.steps}")
        self._earlier.append(at.first)
        self._log.cut(at.frames)
        return self


class _Position(NamedTuple):
    """What `Replay.flush` returned, checked."""

    frames: int
    steps: int
    oldest: int
    first: int
    steps_at_first: int


def _read_position(folder: Path, position: Mapping[str, JSON], shape: Mapping[str, Any]) -> _Position:
    if position.get("format") != FORMAT:
        raise CheckpointError(f"replay {folder} has format {position.get('format')!r}: this version reads {FORMAT}")
    for name, size in shape.items():
        if position.get(name) != size:
            raise CheckpointError(f"replay {folder} was made with {name} {position.get(name)!r}, not {size}")
    values: list[Any] = [position.get(name) for name in _Position._fields]
    at = _Position(*values)
    fits = all(type(number) is int and 0 <= number < 2**62 for number in values) and (
        at.first <= at.frames <= at.first + _slots(shape["capacity"], shape["frame_stack"])
        and at.steps_at_first <= at.oldest <= at.steps <= at.oldest + shape["capacity"]
    )
    if not fits:
        raise CheckpointError(f"the checkpoint's position in replay {folder} makes no sense: {dict(position)}"[:500])
    return at


def ring_bytes(
    capacity: int, action_dim: int, image_size: int = 84, frame_stack: int = 3, features: int | None = None
) -> int:
    """Memory that a full `Replay` takes.

    >>> ring_bytes(100_000, 6) <= 2_600_000_000
    True
    """
    per_step = 4 * action_dim + 4 + 1 + 8 + 8
    frame = image_size * image_size * CHANNELS if features is None else 4 * features
    return _slots(capacity, frame_stack) * frame + capacity * per_step


def _slots(capacity: int, frame_stack: int) -> int:
    """Frames in the ring: one per step, and room for the first frame of every episode."""
    return capacity + capacity // 8 + frame_stack + 1


def _record_type(action_dim: int, image_size: int, features: int | None) -> np.dtype[np.void]:
    frame = ("u1", (image_size, image_size, CHANNELS)) if features is None else ("<f4", (features,))
    return np.dtype(
        [
            ("flags", "u1"),
            ("reward", "<f4"),
            ("action", "<f4", (action_dim,)),
            ("frame", *frame),
        ]
    )
