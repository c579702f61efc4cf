"""Replays with a few small frames, and a naive model that keeps every stack, for tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from ctrlformer.replay import Batch, Replay

SIZE = 5  # height and width of the frames here


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

    def past(self, i: int, count: int, ahead: int = 0) -> list[float]:
        """The actions before step `i`, or before what follows it at most `ahead` steps later, newest first."""
        episode, held = self.steps[i].episode, self.held()
        end = i + sum(s.episode == episode for s in self.steps[i : i + ahead])
        known = {j for j in held if self.steps[j].episode == episode}
        return [float(j) if j in known else 0.0 for j in range(end - 1, end - 1 - count, -1)]


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


def same(a: Batch, b: Batch) -> bool:
    return all(x is y or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def draw(replay: Replay, seed: int = 0) -> Batch:
    return replay.sample(np.random.default_rng(seed), 64, n_step=3, shift=1)
