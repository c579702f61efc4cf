"""ctrlformer: one visual-control agent that keeps learning new tasks from pixels.

>>> import ctrlformer
>>> env = ctrlformer.make_env("toy/reach")
>>> env.action_space.shape
(2,)

`train`, `resume`, `add`, `evaluate` and `load` are all that most programs need. What needs torch is looked up when
first used, so that importing the package costs next to nothing. `register_envs` makes the tasks known to Gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

from ctrlformer.envs import make_env, register_envs
from ctrlformer.errors import CtrlFormerError

if TYPE_CHECKING:
    from ctrlformer.agents import SacAgent
    from ctrlformer.api import Score, TrainedAgent, add, evaluate, load, resume, train
    from ctrlformer.training.callbacks import Callback, StopTraining

__all__ = [
    "Callback",
    "CtrlFormerError",
    "SacAgent",
    "Score",
    "StopTraining",
    "TrainedAgent",
    "add",
    "evaluate",
    "load",
    "make_env",
    "register_envs",
    "resume",
    "train",
]

_HOMES = {
    "Callback": "ctrlformer.training.callbacks",
    "SacAgent": "ctrlformer.agents",
    "Score": "ctrlformer.api",
    "StopTraining": "ctrlformer.training.callbacks",
    "TrainedAgent": "ctrlformer.api",
    "add": "ctrlformer.api",
    "evaluate": "ctrlformer.api",
    "load": "ctrlformer.api",
    "resume": "ctrlformer.api",
    "train": "ctrlformer.api",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.metadata.version("ctrlformer")
    if name not in _HOMES:
        raise AttributeError(f"module 'ctrlformer' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
