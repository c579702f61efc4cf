"""One step of a task with its pixels, beside dm_control's own pixel wrapper."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.table import Effort, Sample, SpeedComparison, alternate
from ctrlformer.config import EnvConfig
from ctrlformer.envs import make_env
from ctrlformer.envs.gl import use_backend

TASK, DOMAIN, NAME = "cartpole_swingup", "cartpole", "swingup"
CAMERA = 0
SEED = 3
STEPS = 15  # in one measurement
LARGEST_DIFFERENCE = 0.1  # of 255, mean over pixels


class WrappedTask:
    """dm_control's task as its users put it together: repeated actions, its pixel wrapper, a stack of frames.

    The wrapper lies around the repetition, so that it draws once a step, not once a frame.
    """

    def __init__(self, config: EnvConfig, action_repeat: int) -> None:
        use_backend()
        from dm_control import suite
        from dm_control.suite.wrappers import pixels

        self._random_state = np.random.RandomState(0)
        env = suite.load(DOMAIN, NAME, task_kwargs={"random": self._random_state})
        size = config.image_size
        drawn = {"height": size, "width": size, "camera_id": CAMERA}
        self._env = pixels.Wrapper(_Repeated(env, action_repeat), render_kwargs=drawn)
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=config.frame_stack)
        self._stack = config.frame_stack

    def reset(self, seed: int) -> NDArray[np.uint8]:
        self._random_state.seed(seed)
        first = self._env.reset().observation["pixels"]
        self._frames.extend([first] * self._stack)
        return np.concatenate(self._frames, axis=-1)

    def step(self, action: NDArray[np.float32]) -> NDArray[np.uint8]:
        self._frames.append(self._env.step(action).observation["pixels"])
        return np.concatenate(self._frames, axis=-1)

    def close(self) -> None:
        self._env.close()


class _Repeated:
    """An action for several frames, rewards summed."""

    def __init__(self, env: Any, action_repeat: int) -> None:
        self._env, self._action_repeat = env, action_repeat

    def step(self, action: NDArray[np.float32]) -> Any:
        total = 0.0
        for _ in range(self._action_repeat):
            now = self._env.step(action)
            total += now.reward or 0.0
            if now.last():
                break
        return now._replace(reward=total)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def env_step(effort: Effort) -> SpeedComparison:
    config = EnvConfig()
    rng = np.random.default_rng(0)
    with closing(make_env(TASK, config)) as env, closing(WrappedTask(config, env.action_repeat)) as wrapped:
        actions = rng.uniform(-1, 1, (STEPS, env.action_dim)).astype(np.float32)
        seen: dict[str, list[NDArray[np.uint8]]] = {}

        def ours() -> None:
            env.reset(seed=SEED)
            seen["ours"] = [env.step(action)[0] for action in actions]

        def reference() -> None:
            wrapped.reset(SEED)
            seen["reference"] = [wrapped.step(action) for action in actions]

        times = alternate(ours, reference, 2 * effort.repeats)
    difference = mean_difference(seen["ours"], seen["reference"])
    note = (
        f"{TASK}, {env.action_repeat} frames a step, 84 x 84, stack of 3; dm_control's pixel wrapper drawing once a"
        f" step; resets included; pixels differ by {difference:.3f} of 255 on average over the same states"
    )
    mine, theirs = (_per_step(sample) for sample in times)
    return SpeedComparison(mine, theirs, "s", note, sound=difference < LARGEST_DIFFERENCE)


def mean_difference(ours: list[NDArray[np.uint8]], reference: list[NDArray[np.uint8]]) -> float:
    """Mean absolute difference of two lists of observations, in grey levels."""
    return float(np.abs(np.stack(ours).astype(np.int16) - np.stack(reference)).mean())


def _per_step(sample: Sample) -> Sample:
    return sample.scaled(1 / (STEPS + 1))  # a reset draws once, too
