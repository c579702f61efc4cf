"""Any Gymnasium environment with continuous actions and RGB frames as a simulator: `gym/CarRacing-v3`."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray
from PIL import Image

from ctrlformer.envs.gl import use_backend
from ctrlformer.envs.pixels import FrameResult, Mask, Pixels
from ctrlformer.envs.tasks import GYM_PREFIX
from ctrlformer.errors import RenderError, TaskError


class GymSimulator:
    """A Gymnasium environment, frame by frame; only its pictures are used, not its observations."""

    def __init__(self, task: str, env: gymnasium.Env[object, NDArray[np.generic]]) -> None:
        space = env.action_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise TaskError(f"{task} has the action space {space}: only a flat Box of continuous actions fits")
        self._task = task
        self._env = env
        self._dtype = space.dtype
        self.action_low = np.where(np.isfinite(space.low), space.low, -1.0).astype(np.float64)
        self.action_high = np.where(np.isfinite(space.high), space.high, 1.0).astype(np.float64)

    def reset(self, seed: int) -> None:
        self._env.reset(seed=seed)

    def step(self, action: NDArray[np.float64]) -> FrameResult:
        _, reward, terminated, truncated, _ = self._env.step(action.astype(self._dtype))
        return FrameResult(float(reward), bool(terminated), bool(truncated))

    def pixels(self, size: int) -> Pixels:
        image = np.asarray(self._env.render())
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise TaskError(f"{self._task} renders {image.dtype} of shape {image.shape}, not RGB pixels")
        if image.shape[:2] == (size, size):
            return image
        return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BOX))

    def moving(self, size: int) -> Mask | None:
        """Gymnasium knows pictures only."""
        return None

    def close(self) -> None:
        self._env.close()


def make_gym(task: str, env_id: str) -> GymSimulator:
    """The Gymnasium environment `env_id`."""
    _refuse_unknown_module(task, env_id)
    with contextlib.suppress(RenderError):
        use_backend()  # Gymnasium's MuJoCo environments need it; others do without
    try:
        env = gymnasium.make(env_id, render_mode="rgb_array")
    except gymnasium.error.DependencyNotInstalled as error:
        raise TaskError(f"{task} needs a package that is not installed: {_one_line(error)}") from error
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        near = difflib.get_close_matches(env_id, gymnasium.registry, n=1)
        hint = f"; did you mean 'gym/{near[0]}'?" if near and near[0] != env_id else ""
        raise TaskError(f"{task} cannot be made: {_one_line(error)}{hint}") from error
    return GymSimulator(task, env)


def import_module_of(task: str) -> None:
    """Import the module of a task such as `gym/my_package:MyTask-v0`: only for a name that a person has typed."""
    module = _module(task)
    if module is None or module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except (ImportError, TypeError, ValueError) as error:
        raise TaskError(f"{task} cannot be made: {_one_line(error)}") from error


def _refuse_unknown_module(task: str, env_id: str) -> None:
    """A run's files may name any module: whoever loads a run decides what is imported, never the run."""
    module = _module(task)
    if env_id.count(":") > 1:
        raise TaskError(f"{task} cannot be made: write gym/MODULE:ID or gym/ID")
    if module is not None and module not in sys.modules:
        raise TaskError(
            f"{task} names the module {module!r}, which a run does not import by itself: if you trust it, import it"
            f" first, in Python by `import {module}`, on the command line by `--import {module}`"
        )


def _module(task: str) -> str | None:
    module, colon, _ = task.removeprefix(GYM_PREFIX).partition(":")
    return module if colon else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
