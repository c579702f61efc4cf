"""Names and action repeats, which need no simulator."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ctrlformer.envs import canonical_task, list_tasks
from ctrlformer.envs.tasks import MANIPULATION, SUITE, action_repeat
from ctrlformer.errors import TaskError


def test_lists_match_dm_control() -> None:
    from ctrlformer.envs import suite  # noqa: F401 (fixes the GL backend before dm_control is imported)

    import dm_control.manipulation  # isort: skip
    import dm_control.suite  # isort: skip

    assert set(SUITE.values()) == set(dm_control.suite.ALL_TASKS)
    vision = {name.removesuffix("_vision") for name in dm_control.manipulation.ALL if name.endswith("_vision")}
    assert set(MANIPULATION) == vision


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("cartpole_swingup", "cartpole_swingup"),
        ("cartpole-swingup", "cartpole_swingup"),
        ("Cartpole Swingup", "cartpole_swingup"),
        ("humanoid_cmu_run", "humanoid_CMU_run"),
        ("ball-in-cup-catch", "ball_in_cup_catch"),
        ("manipulation/reach-site", "manipulation/reach_site"),
        ("manipulation/reach_site_vision", "manipulation/reach_site"),
        ("toy/reach", "toy/reach"),
        ("gym/CarRacing-v3", "gym/CarRacing-v3"),
        ("Gym/CarRacing-v3", "gym/CarRacing-v3"),
    ],
)
def test_spellings(typed: str, canonical: str) -> None:
    assert canonical_task(typed) == canonical


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("cartpole_swing", "'cartpole_swingup'"),
        ("walkerwalk", "'walker_walk'"),
        ("reach_site", "'manipulation/reach_site'"),
        ("toy/reech", "'toy/reach'"),
        ("zzzz", "ctrlformer tasks"),
        ("gym/", "ctrlformer tasks"),
        ("", "ctrlformer tasks"),
    ],
)
def test_unknown_task_suggests_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(TaskError) as raised:
        canonical_task(typed)
    assert nearest in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_listed_task_is_canonical() -> None:
    tasks = list_tasks()
    assert len(set(tasks)) == len(tasks)
    assert [canonical_task(task) for task in tasks] == tasks


@pytest.mark.parametrize(
    ("task", "frames"),
    [
        # the paper's table
        ("cartpole_swingup", 8),
        ("cartpole_swingup_sparse", 8),
        ("cartpole_balance", 8),
        ("cartpole_balance_sparse", 8),
        ("reacher_easy", 4),
        ("reacher_hard", 4),
        ("finger_turn_easy", 2),
        ("finger_turn_hard", 2),
        ("walker_walk", 2),
        ("walker_stand", 2),
        # DrQ's
        ("cheetah_run", 4),
        ("ball_in_cup_catch", 4),
        ("finger_spin", 2),
        # the rest
        ("dog_run", 2),
        ("manipulation/reach_site", 2),
        ("gym/CarRacing-v3", 2),
        ("toy/reach", 2),
    ],
)
def test_action_repeats(task: str, frames: int) -> None:
    assert action_repeat(task) == frames


def test_names_are_answered_without_simulator_or_arrays() -> None:
    code = """
import sys
from ctrlformer.envs import canonical_task, list_tasks
list_tasks()
canonical_task("dog-run")
heavy = {"dm_control", "mujoco", "gymnasium", "numpy", "torch", "OpenGL"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
