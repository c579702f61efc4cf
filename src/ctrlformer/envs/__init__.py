"""Tasks as pixels: `make_env("cartpole_swingup")`.

Names are answered at once; simulators and OpenGL are loaded when the first environment is made. Nothing
outside this package imports dm_control or gymnasium.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ctrlformer.config import EnvConfig
from ctrlformer.envs.registration import register_envs
from ctrlformer.envs.tasks import GYM_PREFIX, SUITE, action_repeat, canonical_task, list_tasks
from ctrlformer.errors import TaskError

if TYPE_CHECKING:
    from ctrlformer.envs.pixels import PixelEnv, Simulator

__all__ = ["canonical_task", "list_tasks", "make_env", "pixel_fingerprint", "register_envs", "typed_task"]


def make_env(task: str, config: EnvConfig = EnvConfig()) -> PixelEnv:  # noqa: B008 (frozen)
    """The task as a Gymnasium environment of stacked frames.

    >>> env = make_env("toy/reach")
    >>> observation, info = env.reset(seed=1)
    >>> observation.shape
    (84, 84, 9)
    """
    from ctrlformer.envs.pixels import PixelEnv, wrap_errors

    task = canonical_task(task)
    repeat = action_repeat(task) if config.action_repeat is None else config.action_repeat
    with wrap_errors(TaskError, f"task {task!r} cannot be made"):
        return PixelEnv(task, _make_simulator(task, config), repeat, config)


def typed_task(name: str) -> str:
    """The canonical name of a task that a person has typed: a module that it names is imported, as they wish."""
    task = canonical_task(name)
    if task.startswith(GYM_PREFIX):
        from ctrlformer.envs.gym import import_module_of

        import_module_of(task)
    return task


def pixel_fingerprint(config: EnvConfig = EnvConfig(), task: str = "cartpole_swingup") -> str:  # noqa: B008
    """Sixteen hex digits that change when this machine draws a fixed state of the task differently."""
    env = make_env(task, config)
    try:
        observation, _ = env.reset(seed=0)
        return hashlib.sha256(observation.tobytes()).hexdigest()[:16]
    finally:
        env.close()


def make_registered(task: str, render_mode: str = "rgb_array", **settings: Any) -> PixelEnv:
    """What `gymnasium.make` calls; `settings` are fields of `EnvConfig`."""
    del render_mode  # there is only one
    return make_env(task, EnvConfig(**settings))


def _make_simulator(task: str, config: EnvConfig) -> Simulator:
    kind, _, name = task.partition("/")
    if kind == "toy":
        from ctrlformer.envs.toy import Toy

        return Toy(axes=1 if name.startswith("slide") else 2, sparse=name.endswith("_sparse"))
    if kind == "gym":
        from ctrlformer.envs.gym import make_gym

        return make_gym(task, name)
    if kind == "manipulation":
        from ctrlformer.envs.manipulation import make_manipulation

        return make_manipulation(task, name, config)
    from ctrlformer.envs.suite import make_suite

    return make_suite(task, *SUITE[task], config)
