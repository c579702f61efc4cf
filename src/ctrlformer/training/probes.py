"""Probes: what a new task starts from is found by trying old policies in it, and random actions, before learning.

Probes are short and cost a small share of the stage's frames. Their episodes are the first in the task's replay: what
the best old policy does, and random actions beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ctrlformer.agents import Agent
from ctrlformer.agents.base import Memoryless, Policy, TransferSource
from ctrlformer.config import TransferConfig
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.replay import Replay
from ctrlformer.replay.rehearsal import RehearsalBuffer
from ctrlformer.training.collect import Abandoned, Collector

RANDOM = "random actions"
EPISODES = 2  # of each policy; all policies play the same two
SHARE = 0.05  # of the stage's frames, for all probes together
MOST_POLICIES = 8  # the newest ones
CLEARLY = 0.1  # the mean return must exceed that of random actions by this share of itself
COMPARED = 64  # observations of each task, by which the most similar one is found
PROBES = 2  # marks the random numbers of the probes


class ProbeResult(NamedTuple):
    """One policy's episodes in the new task, each cut after the same number of frames."""

    policy: str  # the old task whose policy it is, or `RANDOM`
    returns: list[float]
    frames: int
    steps: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))


class Prober:
    """Plays probes in a task that the agent does not know yet, into the task's replay."""

    def __init__(
        self,
        agent: Agent,
        env: PixelEnv,
        replay: Replay,
        place: tuple[int, int, int],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`place` is the run's seed and the numbers of stage and lane; `should_stop` is asked before every step, and a
        yes raises `Abandoned`."""
        self._agent, self._env, self._replay, self._place = agent, env, replay, place
        self._should_stop = should_stop
        self._rng = np.random.default_rng((*place, PROBES))

    @property
    def policies(self) -> list[str]:
        """The old tasks whose policies are probed, the newest first."""
        dims = self._agent.action_dims
        return [task for task in reversed(self._agent.tasks) if dims[task] == self._env.action_dim][:MOST_POLICIES]

    def play(self, frames: int) -> list[ProbeResult]:
        """Random actions first, then the old policies, with about that many frames for all together."""
        longest = max(1, frames // (EPISODES * (len(self.policies) + 1)))
        policies = {task: functools.partial(self._agent.policy, task, explore=False) for task in self.policies}
        return [self._probe(*one, longest) for one in ({RANDOM: self._random_policy} | policies).items()]

    def most_similar(self, finished: Sequence[RehearsalBuffer]) -> str:
        """The finished task that looks most like what the probes have shown."""
        return most_similar(finished, self._replay.observations(self._rng, COMPARED))

    def _random_policy(self) -> Policy:
        return Memoryless(lambda _: self._rng.uniform(-1, 1, self._env.action_dim).astype(np.float32))

    def _probe(self, name: str, policy: Callable[[], Policy], longest: int) -> ProbeResult:
        played = [self._episode(number, policy, longest) for number in range(EPISODES)]
        returns, frames, steps = zip(*played, strict=True)
        return ProbeResult(name, list(returns), sum(frames), sum(steps))

    def _episode(self, number: int, policy: Callable[[], Policy], longest: int) -> tuple[float, int, int]:
        """Return, frames and steps of an episode, as far as it is played."""
        collector = Collector(_Player(policy), self._env, self._replay, self._place, read=self._agent.reader.read)
        collector.episode = number
        collector.begin()
        frames, steps, total = 0, 0, None
        while total is None and frames < longest:
            if self._should_stop():
                raise Abandoned
            taken, total = collector.step(collector.choose(None))
            frames, steps = frames + taken, steps + 1
        return collector.episode_return if total is None else total, frames, steps


class _Player:
    """Plays every episode by a policy of its own, whatever the task."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy:
        return self._make()


def most_similar(finished: Sequence[RehearsalBuffer], observations: Tensor) -> str:
    """The finished task whose mean observation is the nearest to that of these, (N, H, W, C) or (N, 3, features)."""
    mean = observations.cpu().float().mean(0)

    def distance(buffer: RehearsalBuffer) -> float:
        return float((buffer.observations[:COMPARED].float().mean(0) - mean).abs().mean())

    return min(reversed(finished), key=distance).task


def choose_source(probes: Sequence[ProbeResult], similar: str, heads: str) -> TransferSource:
    """The best policy's task if it clearly beats random actions, and its heads too; else the task `similar`, without
    heads. `heads` fresh never copies them; copy takes those of the best policy in any case.

    >>> probes = [ProbeResult(RANDOM, [0.0, 9.0], 20, 20), ProbeResult("A", [5.0, 8.0], 20, 20)]
    >>> choose_source([*probes, ProbeResult("B", [30.0, 9.0], 20, 20)], similar="A", heads="auto")
    TransferSource(task='B', heads=True)
    >>> choose_source(probes, similar="C", heads="auto")  # worse than random actions in one episode
    TransferSource(task='C', heads=False)
    """
    random, *policies = probes
    if not policies:
        return TransferSource(similar, heads=False)
    best = max(policies, key=lambda probe: probe.mean)
    never_worse = all(ours >= theirs for ours, theirs in zip(best.returns, random.returns, strict=True))
    clearly_better = never_worse and best.mean - random.mean > CLEARLY * abs(best.mean)
    if clearly_better or heads == "copy":
        return TransferSource(best.policy, heads=heads != "fresh")
    return TransferSource(similar, heads=False)


def configured_source(transfer: TransferConfig) -> TransferSource | None:
    """What the settings say without probes; none leaves it to the agent, which takes the previous task."""
    if transfer.source == "none":
        return TransferSource(None, heads=False)
    if transfer.source == "previous":
        return None
    return TransferSource(transfer.source, heads=transfer.heads != "fresh")
