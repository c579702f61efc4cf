"""The names of tasks, and how many frames one step of each lasts.

Standard library only: listing tasks, or refusing a mistyped one, needs neither a simulator nor OpenGL.
A test holds the lists against dm_control's own.
"""

from __future__ import annotations

import difflib

from ctrlformer.errors import TaskError

SUITE_DOMAINS: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}

MANIPULATION: tuple[str, ...] = (
    "lift_brick",
    "lift_large_box",
    "place_brick",
    "place_cradle",
    "reach_duplo",
    "reach_site",
    "reassemble_3_bricks_fixed_order",
    "reassemble_5_bricks_random_order",
    "stack_2_bricks",
    "stack_2_bricks_moveable_base",
    "stack_2_of_3_bricks_random_order",
    "stack_3_bricks",
)

TOY: tuple[str, ...] = ("reach", "reach_sparse", "slide", "slide_sparse")

# Frames per step. The paper's table is DrQ's: cartpole 8, reacher 4, finger 2, walker 2. DrQ adds cheetah and
# ball_in_cup at 4. Everything else, manipulation, Gymnasium and toy tasks too, repeats an action twice.
ACTION_REPEATS: dict[str, int] = {
    "cartpole": 8,
    "reacher": 4,
    "cheetah": 4,
    "ball_in_cup": 4,
    "finger": 2,
    "walker": 2,
}
OTHER_ACTION_REPEAT = 2

SUITE: dict[str, tuple[str, str]] = {
    f"{domain}_{task}": (domain, task) for domain, tasks in SUITE_DOMAINS.items() for task in tasks
}
GYM_PREFIX = "gym/"


def list_tasks() -> list[str]:
    """Every task with a fixed name; `gym/<id>` takes any Gymnasium id besides.

    >>> "cartpole_swingup" in list_tasks()
    True
    """
    return [*SUITE, *(f"manipulation/{name}" for name in MANIPULATION), *(f"toy/{name}" for name in TOY)]


def canonical_task(name: str) -> str:
    """The one spelling of a task's name; a `TaskError` suggests the nearest when there is none.

    >>> canonical_task("cartpole-swingup")
    'cartpole_swingup'
    >>> canonical_task("manipulation/reach_site_vision")
    'manipulation/reach_site'
    """
    if name.lower().startswith(GYM_PREFIX) and len(name) > len(GYM_PREFIX):
        return GYM_PREFIX + name[len(GYM_PREFIX) :]  # Gymnasium's ids keep their own spelling
    known = {_folded(task): task for task in list_tasks()}
    folded = _folded(name)
    if folded in known:
        return known[folded]
    known |= {folded_task.rpartition("/")[2]: task for folded_task, task in known.items()}  # without its family
    near = difflib.get_close_matches(folded, known, n=1, cutoff=0.4)
    hint = f"did you mean {known[near[0]]!r}?" if near else "`ctrlformer tasks` lists them"
    raise TaskError(f"unknown task {name!r}: {hint}")


def action_repeat(task: str) -> int:
    """Frames per step of a canonical task.

    >>> action_repeat("cartpole_swingup"), action_repeat("dog_run")
    (8, 2)
    """
    domain = SUITE[task][0] if task in SUITE else task
    return ACTION_REPEATS.get(domain, OTHER_ACTION_REPEAT)


def _folded(name: str) -> str:
    """A name without the differences people do not mean."""
    folded = name.strip().lower().replace("-", "_").replace(" ", "_")
    return folded.removesuffix("_vision") if folded.startswith("manipulation/") else folded
