"""`PixelEnv`: any simulator as a Gymnasium environment of stacked frames.

Stacking, action repeat and rescaling happen here once, for every kind of task; a kind of task is a
`Simulator`, which knows frames only.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.errors import CtrlFormerError, NonFiniteError, RenderError, TaskError

Pixels = NDArray[np.uint8]
ActionArray = NDArray[np.float32]
Mask = NDArray[np.bool_]

VIDEO_SIZE = 256
LARGEST_SEED = 2**31


class FrameResult(NamedTuple):
    """What one simulator step gave."""

    reward: float
    terminated: bool
    truncated: bool


class Simulator(Protocol):
    """One task, frame by frame."""

    action_low: NDArray[np.float64]  # (A,)
    action_high: NDArray[np.float64]  # (A,)

    def reset(self, seed: int) -> None:
        """Start the episode that belongs to `seed`, whatever came before."""

    def step(self, action: NDArray[np.float64]) -> FrameResult:
        """One frame with an action in the task's own units."""

    def pixels(self, size: int) -> Pixels:
        """The present state as (size, size, 3)."""

    def moving(self, size: int) -> Mask | None:
        """Which pixels (size, size) show what moves; none where the simulator cannot tell."""

    def close(self) -> None:
        """Free what the simulator holds."""


@contextlib.contextmanager
def wrap_errors(kind: type[CtrlFormerError], what: str) -> Iterator[None]:
    """Simulators are other people's programs: whatever they raise becomes one line that names the task."""
    try:
        yield
    except CtrlFormerError:
        raise
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}"[:500]) from error


class PixelEnv(gymnasium.Env[Pixels, ActionArray]):
    """A task seen as `frame_stack` frames, oldest first, with actions in [-1, 1].

    A step repeats its action for `action_repeat` frames, or fewer where the episode ends, and sums their
    rewards. A time limit is `truncated`; `terminated` means that the task itself ended.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (Gymnasium's own attribute)

    def __init__(self, task: str, simulator: Simulator, action_repeat: int, config: EnvConfig) -> None:
        self.task = task
        self.action_repeat = action_repeat
        self.action_dim = len(simulator.action_low)
        self.render_mode = "rgb_array"
        self._simulator = simulator
        self._size = config.image_size
        self._over = True  # until the first reset
        self._stack = config.frame_stack
        self._frames: deque[Pixels] = deque(maxlen=config.frame_stack)
        shape = (config.image_size, config.image_size, 3 * config.frame_stack)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.action_dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Start an episode: with a seed, exactly the one that seed always starts; without, a new one."""
        super().reset(seed=seed, options=options)
        episode_seed = int(self.np_random.integers(LARGEST_SEED)) if seed is None else seed
        with wrap_errors(TaskError, f"task {self.task!r} failed in reset"):
            self._simulator.reset(episode_seed)
        self._over = False
        first = self._draw(self._size)
        self._frames.extend(first for _ in range(self._stack))
        return self._observation(), {"frames": 0}

    def step(self, action: ActionArray) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Repeat one action; `info["frames"]` says how many frames that really took."""
        if self._over:
            raise gymnasium.error.ResetNeeded(f"the episode of {self.task} is over: call reset() first")
        native = self._native(action)
        total, frames = 0.0, 0
        terminated = truncated = False
        with wrap_errors(TaskError, f"task {self.task!r} failed in step"):
            while frames < self.action_repeat and not (terminated or truncated):
                reward, terminated, truncated = self._simulator.step(native)
                total += reward
                frames += 1
        self._over = terminated or truncated
        self._frames.append(self._draw(self._size))
        return self._observation(), total, terminated, truncated, {"frames": frames}

    def render(self, size: int = VIDEO_SIZE) -> Pixels:
        """The present state as (size, size, 3), for videos."""
        return self._draw(size)

    def moving(self) -> Mask | None:
        """Which pixels of the newest frame show what moves, not the background; none where that is not known."""
        return self._simulator.moving(self._size)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # a simulator or renderer that is dead already loses nothing more
            self._simulator.close()

    def _draw(self, size: int) -> Pixels:
        with wrap_errors(RenderError, f"task {self.task!r} could not be drawn"):
            return self._simulator.pixels(size)

    def _observation(self) -> Pixels:
        return np.concatenate(self._frames, axis=-1)  # (84, 84, 9)

    def _native(self, action: ActionArray) -> NDArray[np.float64]:
        """From [-1, 1] to the task's own units; what lies outside is clipped."""
        wanted = np.asarray(action, np.float64)  # (A,)
        if wanted.shape != (self.action_dim,):
            raise ValueError(f"{self.task} takes actions of shape {(self.action_dim,)}, not {wanted.shape}")
        if not np.isfinite(wanted).all():
            raise NonFiniteError(f"{self.task} was given the action {wanted.tolist()}: every number must be finite")
        low, high = self._simulator.action_low, self._simulator.action_high
        return low + (np.clip(wanted, -1.0, 1.0) + 1.0) / 2.0 * (high - low)
