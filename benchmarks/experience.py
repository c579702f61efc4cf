"""The same made-up experience for every replay: episodes of random frames, actions and rewards."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctrlformer.replay import Replay

ACTIONS = 1
EPISODE_STEPS = 125  # as cartpole: 1000 frames, 8 a step
SIZE, STACK = 84, 3


class RecordedEpisode(NamedTuple):
    frames: NDArray[np.uint8]  # (T + 1, H, W, 3)
    action: NDArray[np.float32]  # (T, A)
    reward: NDArray[np.float32]  # (T,)


class Transition(NamedTuple):
    """A step as others store it: both observations whole, channels first."""

    observation: NDArray[np.uint8]  # (9, 84, 84)
    action: NDArray[np.float32]  # (A,)
    reward: float
    next_observation: NDArray[np.uint8]  # (9, 84, 84)


@functools.cache
def episodes(steps: int, size: int = SIZE) -> tuple[RecordedEpisode, ...]:
    """`steps` steps, the last episode perhaps a short one."""
    rng = np.random.default_rng(0)
    lengths = [min(EPISODE_STEPS, steps - start) for start in range(0, steps, EPISODE_STEPS)]
    return tuple(
        RecordedEpisode(
            rng.integers(256, size=(length + 1, size, size, 3), dtype=np.uint8),
            rng.uniform(-1, 1, (length, ACTIONS)).astype(np.float32),
            rng.random(length, np.float32),
        )
        for length in lengths
    )


def filled_replay(steps: int, size: int = SIZE) -> Replay:
    """Our replay, full."""
    replay = Replay(None, steps, ACTIONS, size, STACK)
    for episode in episodes(steps, size):
        add_episode(replay, episode)
    return replay


def add_episode(replay: Replay, episode: RecordedEpisode) -> None:
    replay.begin(episode.frames[0])
    for action, reward, frame in zip(episode.action, episode.reward, episode.frames[1:], strict=True):
        replay.add(action, float(reward), False, frame)


def transitions(steps: int) -> Iterator[Transition]:
    """The same steps, one after the other, as stacked observations."""
    for episode in episodes(steps):
        planes = np.ascontiguousarray(episode.frames.transpose(0, 3, 1, 2))  # (T + 1, 3, 84, 84)
        before = _stack(planes, 0)
        for number, (action, reward) in enumerate(zip(episode.action, episode.reward, strict=True)):
            after = _stack(planes, number + 1)
            yield Transition(before, action, float(reward), after)
            before = after


def _stack(planes: NDArray[np.uint8], newest: int) -> NDArray[np.uint8]:
    """(9, 84, 84): the frames up to `newest`, the first one repeated before the start."""
    return planes[[max(0, newest - back) for back in range(STACK - 1, -1, -1)]].reshape(-1, *planes.shape[2:])
