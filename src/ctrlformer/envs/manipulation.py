"""dm_control's manipulation tasks as simulators, seen by the camera `front_close`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlformer.config import EnvConfig
from ctrlformer.envs.suite import FAST_SHADOW_MAP, DmControl  # first: it fixes the GL backend

import dm_control.manipulation  # isort: skip

CAMERA = "front_close"


class Manipulation(DmControl):
    """A manipulation task whose episodes depend on their seed alone."""

    def __init__(self, task: str, env: Any, random_state: np.random.RandomState, camera: str) -> None:
        super().__init__(task, env, random_state, camera)
        # `reassemble_*` shuffles its orders in place, so that each episode would start from the one before.
        orders = (getattr(env.task, name, None) for name in ("_initial_order", "_desired_order"))
        self._orders = [(order, order.copy()) for order in orders if isinstance(order, np.ndarray)]

    def reset(self, seed: int) -> None:
        for order, original in self._orders:
            order[:] = original
        super().reset(seed)


def make_manipulation(task: str, name: str, config: EnvConfig) -> Manipulation:
    """The task that dm_control calls `<name>_vision`."""
    env = dm_control.manipulation.load(f"{name}_vision", seed=0)
    # The environment would compute all its observations, a picture among them, at every frame: PixelEnv
    # needs one picture per step. It reads the switches anew at every reset.
    for observable in env.task.observables.values():
        observable.enabled = False
    if config.render == "fast":
        # In the model's source, because every reset compiles it again.
        visual = env.task.root_entity.mjcf_model.visual
        visual.quality.shadowsize = FAST_SHADOW_MAP
        visual.get_children("global").offwidth = config.image_size
        visual.get_children("global").offheight = config.image_size
    return Manipulation(task, env, env.random_state, CAMERA)
