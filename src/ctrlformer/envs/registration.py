"""The tasks under Gymnasium's ids: `gymnasium.make("ctrlformer/cartpole_swingup-v0")`.

Gymnasium is too slow to import at every start of the command line, and it has no plugins of its own. So
the ids are registered at once where Gymnasium is loaded already, and else as soon as it is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ctrlformer.envs.tasks import list_tasks


def gymnasium_id(task: str) -> str:
    """The id under which Gymnasium knows a task.

    >>> gymnasium_id("manipulation/reach_site")
    'ctrlformer/manipulation_reach_site-v0'
    """
    return f"ctrlformer/{task.replace('/', '_')}-v0"


def register_tasks() -> None:
    """Make every task known to `gymnasium.make`; its keyword arguments are the fields of `EnvConfig`."""
    import gymnasium

    for task in list_tasks():
        gymnasium.register(gymnasium_id(task), "ctrlformer.envs:make_registered", kwargs={"task": task})


def register_with_gymnasium() -> None:
    """Register the tasks now, or right after somebody imports Gymnasium."""
    if "gymnasium" in sys.modules:
        register_tasks()
    else:
        sys.meta_path.insert(0, _GymnasiumWatcher())


class _GymnasiumWatcher(MetaPathFinder):
    """Waits in the import system for Gymnasium, then steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)  # the answer of all other finders
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                register_tasks()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
