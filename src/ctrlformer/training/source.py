"""What a new task starts from: old policies are tried in it, and random actions, before anything is learnt.

The trials are short and cost a small share of the stage's frames. They are also the first experience in the task's
replay: what an old policy already does well, and random actions beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ctrlformer.agents import Agent
from ctrlformer.agents.base import Memoryless, Origin, Policy
from ctrlformer.config import TransferConfig
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.replay import Replay
from ctrlformer.training.collect import Abandoned, Collector

RANDOM = "random actions"
EPISODES = 2  # of each policy, with the same starts for all
SHARE = 0.05  # of the stage's frames, at most, for all trials together
MOST_POLICIES = 8  # the newest ones
CLEARLY = 0.1  # the mean return must exceed that of random actions by this share of itself
SHOWN = 64  # observations by which the most similar task is told
TRIALS = 2  # marks the random numbers of the trials


class Trial(NamedTuple):
    """One policy's episodes in the new task, each cut after the same number of frames."""

    policy: str  # the old task whose policy it is, or `RANDOM`
    returns: list[float]
    frames: int
    steps: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))


class PolicyTrials:
    """Plays trials in a task that the agent does not know yet, into the task's replay."""

    def __init__(
        self,
        agent: Agent,
        env: PixelEnv,
        replay: Replay,
        place: tuple[int, int, int],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`place` is the run's seed and the numbers of stage and lane."""
        self._agent, self._env, self._replay, self._place = agent, env, replay, place
        self._should_stop = should_stop
        self._rng = np.random.default_rng((*place, TRIALS))

    def play(self, frames: int) -> list[Trial]:
        """Random actions, then the newest policies with as many actions: `frames` at most, all together."""
        dims, actions = self._agent.action_dims, self._env.action_dim
        fitting = [task for task in reversed(self._agent.tasks) if dims[task] == actions][:MOST_POLICIES]
        longest = max(1, frames // (EPISODES * (len(fitting) + 1)))
        random = Memoryless(lambda _: self._rng.uniform(-1, 1, actions).astype(np.float32))
        trials = [self._trial(RANDOM, lambda: random, longest)]
        for task in fitting:
            trials.append(self._trial(task, lambda task=task: self._agent.policy(task, explore=False), longest))
        return trials

    def most_similar(self) -> str:
        """The old task that looks most like what the trials have shown."""
        return self._agent.most_similar(self._replay.observations(self._rng, SHOWN))

    def _trial(self, name: str, policy: Callable[[], Policy], longest: int) -> Trial:
        played = [self._episode(number, policy, longest) for number in range(EPISODES)]
        returns, frames, steps = zip(*played, strict=True)
        return Trial(name, list(returns), sum(frames), sum(steps))

    def _episode(self, number: int, policy: Callable[[], Policy], longest: int) -> tuple[float, int, int]:
        """Return, frames and steps of an episode, as far as it is played."""
        collector = Collector(_Plays(policy), self._env, self._replay, self._place, read=self._agent.reader.read)
        collector.episode = number
        collector.begin()
        frames, steps, total = 0, 0, None
        while total is None and frames < longest:
            if self._should_stop():
                raise Abandoned
            taken, total = collector.step(collector.choose(None))
            frames, steps = frames + taken, steps + 1
        return collector.episode_return if total is None else total, frames, steps


class _Plays:
    """An agent that plays every task by the same policy."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy:
        return self._make()


def choose_origin(trials: list[Trial], most_similar: str, heads: str) -> Origin:
    """The best policy's task, if that clearly beats random actions: its heads are copied as well. Else the token of the
    most similar task. `heads` fresh copies none; copy takes the best policy's in any case.

    >>> trials = [Trial(RANDOM, [0.0, 9.0], 20, 20), Trial("A", [5.0, 8.0], 20, 20), Trial("B", [30.0, 9.0], 20, 20)]
    >>> choose_origin(trials, most_similar="A", heads="auto")
    Origin(task='B', heads=True)
    >>> choose_origin(trials[:2], most_similar="A", heads="auto")  # worse than random actions in one episode
    Origin(task='A', heads=False)
    """
    random, *policies = trials
    if not policies:
        return Origin(most_similar, heads=False)
    best = max(policies, key=lambda trial: trial.mean)
    never_worse = all(ours >= theirs for ours, theirs in zip(best.returns, random.returns, strict=True))
    useful = never_worse and best.mean - random.mean > CLEARLY * abs(best.mean)
    if useful or heads == "copy":
        return Origin(best.policy, heads=heads != "fresh")
    return Origin(most_similar, heads=False)


def settled_origin(transfer: TransferConfig, tasks: list[str]) -> Origin | None:
    """What the settings say without a trial; none leaves it to the agent, which takes the previous task."""
    if transfer.source == "none":
        return Origin(None, heads=False)
    if transfer.source in tasks:
        return Origin(transfer.source, heads=transfer.heads != "fresh")
    return None
