"""dm_control tasks as simulators: the suite here, and what manipulation shares with it."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.envs.gl import use_backend
from ctrlformer.envs.pixels import FrameResult, Mask, Pixels
from ctrlformer.errors import NonFiniteError

GL_BACKEND = use_backend()  # before the imports below: they fix the backend for the whole process

import dm_control.rl.control  # noqa: E402
import dm_control.suite  # noqa: E402
import mujoco  # noqa: E402
from dm_control.mujoco.engine import Camera  # noqa: E402

# DrQ's cameras: the first one, but quadruped's third.
CAMERAS = {"quadruped": 2}
# Texels a side of the shadow map, the dearest part of a small picture; dm_control's own has 2048. Pixels differ by
# less than 0.1 of 255 on average, for which swimmer's large floor needs more.
FAST_SHADOW_MAP = 512
SHADOW_MAPS = {"swimmer": 1024}
# Seconds. lqr alone has no limit of its own; like most others it gets one of 1000 frames.
TIME_LIMITS = {"lqr": 30.0}


class DmControl:
    """One dm_control environment, frame by frame, seen from one camera."""

    def __init__(self, task: str, env: Any, random_state: np.random.RandomState, camera: int | str) -> None:
        self._task = task
        self._env = env
        self._random_state = random_state
        self._camera = camera
        self._views: dict[int, Camera] = {}  # this episode's, by size: making one takes longer than a frame of physics
        spec = env.action_spec()
        # lqr alone does not bound its actions.
        self.action_low = np.where(np.isfinite(spec.minimum), spec.minimum, -1.0).astype(np.float64)
        self.action_high = np.where(np.isfinite(spec.maximum), spec.maximum, 1.0).astype(np.float64)

    @property
    def physics(self) -> Any:
        """dm_control's own handle on the simulation."""
        return self._env.physics

    def reset(self, seed: int) -> None:
        # The generator is shared by environment and task: seeding it anew in place reaches both.
        self._random_state.seed(seed)
        self._views.clear()  # manipulation compiles a new model for every episode
        try:
            self._env.reset()
        except dm_control.rl.control.PhysicsError as error:
            self._diverged(error)

    def step(self, action: NDArray[np.float64]) -> FrameResult:
        try:
            now = self._env.step(action)
        except dm_control.rl.control.PhysicsError as error:
            self._diverged(error)
        ended = bool(now.last())
        terminated = ended and now.discount == 0.0
        return FrameResult(float(now.reward), terminated, ended and not terminated)

    def state(self) -> NDArray[np.float32]:
        """dm_control's own observation of the present state, flattened: (S,)."""
        observation = self._env.task.get_observation(self._env.physics)
        return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)

    def pixels(self, size: int) -> Pixels:
        image: Pixels = self._view(size).render()
        return image.copy()  # the camera draws into one buffer again and again

    def moving(self, size: int) -> Mask:
        """Geometry of bodies that are not fixed to the world."""
        shown, kind = self._view(size).render(segmentation=True).transpose(2, 0, 1)  # (size, size) each
        model = self._env.physics.model
        is_geometry = kind == mujoco.mjtObj.mjOBJ_GEOM
        body = np.asarray(model.geom_bodyid)[np.where(is_geometry, shown, 0)]
        moves: Mask = is_geometry & (np.asarray(model.body_weldid)[body] != 0)
        return moves

    def _view(self, size: int) -> Camera:
        physics = self._env.physics
        if size > min(physics.model.vis.global_.offwidth, physics.model.vis.global_.offheight):
            self._enlarge_buffer(size)
        if size not in self._views:
            self._views[size] = Camera(physics, size, size, self._camera)
        return self._views[size]

    def close(self) -> None:
        # dm_control leaves the OpenGL context to the garbage collector, but only this thread can free it.
        self._views.clear()
        self._env.physics.free()
        self._env.close()

    def _enlarge_buffer(self, size: int) -> None:
        physics = self._env.physics
        contexts = physics.contexts
        with contexts.gl.make_current() as thread:
            thread.call(mujoco.mjr_resizeOffscreen, size, size, contexts.mujoco.ptr)
        physics.model.vis.global_.offwidth = physics.model.vis.global_.offheight = size

    def _diverged(self, error: Exception) -> NoReturn:
        reason = " ".join(str(error).split())
        raise NonFiniteError(f"the simulation of {self._task} diverged: {reason}") from error


def make_suite(task: str, domain: str, name: str, config: EnvConfig) -> DmControl:
    """A task of the dm_control suite."""
    # A fixed seed at the start, because lqr draws its springs when it is built.
    random_state = np.random.RandomState(0)
    settings: dict[str, Any] = {"random": random_state}
    if domain in TIME_LIMITS:
        settings["time_limit"] = TIME_LIMITS[domain]
    env = dm_control.suite.load(domain, name, task_kwargs=settings)
    if config.render == "fast":
        # Both are read when the first picture is drawn.
        visual = env.physics.model.vis
        visual.quality.shadowsize = SHADOW_MAPS.get(domain, FAST_SHADOW_MAP)
        visual.global_.offwidth = visual.global_.offheight = config.image_size
    return DmControl(task, env, random_state, CAMERAS.get(domain, 0))
