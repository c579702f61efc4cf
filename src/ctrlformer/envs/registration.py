"""The tasks under Gymnasium's ids: `gymnasium.make("ctrlformer/cartpole_swingup-v0")` after `register_envs()`."""

from __future__ import annotations

from ctrlformer.envs.tasks import list_tasks


def gymnasium_id(task: str) -> str:
    """The id under which Gymnasium knows a task.

    >>> gymnasium_id("manipulation/reach_site")
    'ctrlformer/manipulation_reach_site-v0'
    """
    return f"ctrlformer/{task.replace('/', '_')}-v0"


def register_envs() -> None:
    """Make every task known to `gymnasium.make`, whose keyword arguments are then the fields of `EnvConfig`.

    >>> import gymnasium
    >>> register_envs()
    >>> gymnasium.make("ctrlformer/toy_reach-v0", frame_stack=2).observation_space.shape
    (84, 84, 6)
    """
    import gymnasium  # here, because it is too slow to load at every start of the command line

    for task in list_tasks():
        if gymnasium_id(task) not in gymnasium.registry:
            gymnasium.register(gymnasium_id(task), "ctrlformer.envs:make_registered", kwargs={"task": task})
