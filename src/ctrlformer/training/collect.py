"""Play episodes: seeds, scores with the mean action, videos."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.agents.base import Policy
from ctrlformer.envs.pixels import VIDEO_SIZE, ActionArray, PixelEnv, Pixels
from ctrlformer.errors import NonFiniteError, RunError
from ctrlformer.replay import Replay
from ctrlformer.storage.files import replacing

TRAIN, EVALUATE, VIDEO = range(3)  # what an episode is for: part of its seed, so that no two purposes share episodes
VIDEO_FPS = 20  # one picture per step


class ActingAgent(Protocol):
    """What playing needs of an agent."""

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy: ...


class Abandoned(Exception):
    """An evaluation given up because training was asked to stop; a resume repeats it."""


def episode_seed(*numbers: int) -> int:
    """A seed from (run seed, purpose, ...), so that an episode can be repeated knowing only its place in the run.

    >>> episode_seed(1, TRAIN, 0, 7) == episode_seed(1, TRAIN, 0, 7) != episode_seed(1, TRAIN, 0, 8)
    True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)  # 31 bits: every simulator takes them


def checked_step(env: PixelEnv, action: ActionArray) -> tuple[Pixels, float, bool, bool, int]:
    """One step that stops at a reward or pixels no learning should see; the last item counts frames."""
    pixels, reward, terminated, truncated, info = env.step(action)
    if not math.isfinite(reward):
        raise NonFiniteError(f"task {env.task!r} gave the reward {reward}: check the environment")
    space = env.observation_space
    if pixels.shape != space.shape or pixels.dtype != space.dtype:
        raise NonFiniteError(
            f"task {env.task!r} gave pixels {pixels.dtype} {pixels.shape}, not {space.dtype} {space.shape}"
        )
    return pixels, float(reward), bool(terminated), bool(truncated), int(info["frames"])


class Collector:
    """Plays the training episodes of one task, step by step, into the replay.

    An episode's seed follows from its place in the run, so `actions` alone bring an open episode back after a resume;
    what its policy remembers depends on what the agent knew at each step, and is kept as `memory`.
    `place` is the run's seed and the numbers of stage and lane; `read` makes of a frame what the replay stores of it;
    an episode is cut after `longest` frames.
    """

    def __init__(
        self,
        agent: ActingAgent,
        env: PixelEnv,
        replay: Replay,
        place: tuple[int, int, int],
        *,
        read: Callable[[Pixels], NDArray[Any]] = lambda frame: frame,
        longest: int | None = None,
    ) -> None:
        self.episode = 0  # number of the open episode, or of the next one when none is open
        self.actions: list[ActionArray] = []  # of the open episode; empty when none is open
        self.episode_return = 0.0
        self._agent, self._env, self._task, self._replay, self._read = agent, env, env.task, replay, read
        self._seeds = (place[0], TRAIN, *place[1:])
        self._frames, self._longest = 0, math.inf if longest is None else longest  # of the open episode
        self._pixels: Pixels | None = None
        self._policy: Policy | None = None  # of the open episode

    def begin(self) -> None:
        """Start the next episode, unless one is open."""
        if self._pixels is None:
            self._pixels = self._reset()
            self._policy = self._agent.policy(self._task, explore=True)
            self._replay.begin(self._newest_frame(self._pixels))

    def choose(self, random: np.random.Generator | None) -> ActionArray:
        """The open episode's next action: random if given a generator, else the policy's."""
        if self._pixels is None or self._policy is None:
            raise RuntimeError("Collector.choose before Collector.begin: no episode is open")
        return self._random_action(random) if random else self._policy(self._pixels)

    def step(self, action: ActionArray) -> tuple[int, float | None]:
        """Take the chosen action: the step's frames, and the return if the episode ended."""
        self._pixels, reward, terminated, truncated, frames = checked_step(self._env, action)
        self._replay.add(action, reward, terminated, self._newest_frame(self._pixels))
        self.actions.append(action)
        self.episode_return += reward
        self._frames += frames
        cut = truncated or self._frames >= self._longest
        return frames, self._end() if terminated or cut else None

    @property
    def memory(self) -> Tensor | None:
        """What the open episode's policy remembers."""
        return self._policy.memory if self._policy else None

    def reopen(self, episode: int, actions: NDArray[np.float32], memory: Tensor | None = None) -> None:
        """Stand where `actions` (T, A) of `episode` lead; the replay has them already and gets nothing."""
        self.episode = episode
        if not len(actions):
            return
        self._pixels = self._reset()
        self._policy = self._agent.policy(self._task, explore=True, memory=memory)
        for action in actions:
            self._pixels, reward, terminated, truncated, frames = checked_step(self._env, action)
            self.actions.append(action)
            self.episode_return += reward
            self._frames += frames
            if terminated or truncated:
                raise RunError(f"task {self._task!r} does not repeat itself on this machine: the run cannot be resumed")

    def fingerprint(self) -> int | None:
        """A checksum of the pixels the agent sees now: the same after an exact resume."""
        return None if self._pixels is None else zlib.crc32(self._pixels.tobytes())

    def _reset(self) -> Pixels:
        return self._env.reset(seed=episode_seed(*self._seeds, self.episode))[0]

    def _end(self) -> float:
        total = self.episode_return
        self.episode += 1
        self.actions, self.episode_return, self._frames, self._pixels, self._policy = [], 0.0, 0, None, None
        return total

    def _random_action(self, random: np.random.Generator) -> ActionArray:
        return random.uniform(-1, 1, self._env.action_dim).astype(np.float32)

    def _newest_frame(self, pixels: Pixels) -> NDArray[Any]:
        return self._read(pixels[..., -3:])  # (84, 84, 3)


def evaluate(
    agent: ActingAgent,
    env: PixelEnv,
    task: str,
    episodes: int,
    seed: int,
    on_episode: Callable[[int], None] = lambda done: None,
    should_stop: Callable[[], bool] = lambda: False,
    first: int = 0,
) -> list[float]:
    """Return the returns of `episodes` episodes with the mean action; the same `seed` and `first` play the same ones.

    `on_episode` is told how many are done, first that none is. `should_stop` is asked before every step: a yes raises
    `Abandoned`.
    """
    returns: list[float] = []
    on_episode(0)
    for number in range(first, first + episodes):
        returns.append(play(agent, env, task, episode_seed(seed, EVALUATE, number), should_stop))
        on_episode(len(returns))
    return returns


def play(
    agent: ActingAgent,
    env: PixelEnv,
    task: str,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    on_observation: Callable[[Pixels, float], None] = lambda pixels, earned: None,
) -> float:
    """The return of one episode with the mean action; every observation is shown with what was earned before it."""
    policy = agent.policy(task, explore=False)
    pixels, _ = env.reset(seed=seed)
    total, done = 0.0, False
    on_observation(pixels, total)
    while not done:
        if should_stop():
            raise Abandoned
        pixels, reward, terminated, truncated, _ = checked_step(env, policy(pixels))
        total += reward
        done = terminated or truncated
        on_observation(pixels, total)
    return total


def record_video(agent: ActingAgent, env: PixelEnv, task: str, seed: int, path: Path) -> float:
    """Film one episode with the mean action into an MP4; gives its return."""
    with film(path, VIDEO_SIZE) as show:
        return play(
            agent, env, task, episode_seed(seed, VIDEO), on_observation=lambda _, __: show(env.render(VIDEO_SIZE))
        )


@contextmanager
def film(path: Path, size: int) -> Iterator[Callable[[Pixels], None]]:
    """An MP4 of square pictures (size, size, 3): what it yields takes one after the other."""
    import imageio_ffmpeg

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:  # whatever lies at `path`, a link too, is replaced and not followed
            writer = imageio_ffmpeg.write_frames(
                str(temporary), (size, size), fps=VIDEO_FPS, macro_block_size=1, ffmpeg_log_level="error"
            )
            with closing(writer):
                writer.send(None)  # the writer is a generator: this starts it
                yield lambda picture: writer.send(np.ascontiguousarray(picture))
    except OSError as error:
        raise RunError(f"could not write the video {path}: {error}") from None
