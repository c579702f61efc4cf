"""Foreign Gymnasium environments as tasks, and our tasks as Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from ctrlformer.envs import make_env, register_envs, typed_task
from ctrlformer.errors import TaskError


class Drift(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """A bar that drifts over a wide picture; falls off at the right edge."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 400, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-20, 40, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = float(self.np_random.integers(0, 100))
        return np.array([self.place]), {}

    def step(self, action: NDArray[np.float32]) -> Any:
        self.place += float(action[0])
        return np.array([self.place]), 1.0, self.place > 400, False, {}

    def render(self) -> Any:
        image = np.zeros((200, 400, 3), np.uint8)
        left = int(np.clip(self.place, 0, 380))
        image[:, left : left + 20] = 255
        return image


class Wordy(Drift):
    def render(self) -> Any:
        return "no picture"


@pytest.fixture(autouse=True)
def registered() -> Any:
    gymnasium.register("Drift-v0", Drift)
    gymnasium.register("Wordy-v0", Wordy)
    gymnasium.register("Short-v0", Drift, max_episode_steps=5)
    yield
    for name in ("Drift-v0", "Wordy-v0", "Short-v0"):
        del gymnasium.registry[name]


def test_a_foreign_environment_is_resized_rescaled_and_repeats_exactly() -> None:
    env = make_env("gym/Drift-v0")
    first, _ = env.reset(seed=3)
    assert first.shape == (84, 84, 9)
    assert (env.action_dim, env.action_repeat) == (1, 2)
    start = env._simulator._env.unwrapped.place  # type: ignore[attr-defined]
    moved, reward, terminated, truncated, info = env.step(np.array([1.0], np.float32))
    assert env._simulator._env.unwrapped.place == start + 2 * 40  # type: ignore[attr-defined]
    assert (reward, terminated, truncated, info["frames"]) == (2.0, False, False, 2)
    assert (moved[..., -3:] != first[..., -3:]).any()
    assert (env.reset(seed=3)[0] == first).all()
    assert env.render(64).shape == (64, 64, 3)


def test_resizing_averages() -> None:
    env = make_env("gym/Drift-v0")
    observation, _ = env.reset(seed=3)
    # the bar covers 20 of 400 columns
    assert observation.mean() == pytest.approx(255 * 20 / 400, rel=0.02)


def test_ends_keep_their_meaning() -> None:
    env = make_env("gym/Drift-v0")
    env.reset(seed=3)
    over = False
    while not over:
        *_, terminated, truncated, _ = env.step(np.array([1.0], np.float32))
        over = terminated or truncated
    assert (terminated, truncated) == (True, False)
    short = make_env("gym/Short-v0")
    short.reset(seed=3)
    ends = [short.step(np.array([0.0], np.float32))[2:] for _ in range(3)]
    assert ends[-1] == (False, True, {"frames": 1})


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("gym/CartPole-v1", "continuous"),
        ("gym/CarRacin-v3", "CarRacing-v3"),
        ("gym/no_such_module:Thing-v0", "no_such_module"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(task: str, words: str) -> None:
    with pytest.raises(TaskError, match=words) as raised:
        make_env(task)
    assert "\n" not in str(raised.value)


def test_an_environment_without_pictures_is_refused() -> None:
    with pytest.raises(TaskError, match="not RGB"):
        make_env("gym/Wordy-v0").reset(seed=1)


def test_our_settings_pass_through_gymnasium_make() -> None:
    register_envs()
    env = gymnasium.make("ctrlformer/cartpole_swingup-v0", action_repeat=4, frame_stack=2)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (84, 84, 6)
    assert env.unwrapped.action_repeat == 4  # type: ignore[attr-defined]
    env.close()


def test_importing_changes_nothing_in_gymnasium_until_asked() -> None:
    code = (
        "import sys, ctrlformer; before = list(sys.meta_path); assert 'gymnasium' not in sys.modules;"
        "import gymnasium; assert 'ctrlformer/toy_reach-v0' not in gymnasium.registry; assert before == sys.meta_path;"
        "ctrlformer.register_envs(); ctrlformer.register_envs();"
        "gymnasium.make('ctrlformer/toy_reach-v0'); print('made')"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.stdout.strip() == "made", child.stderr


MODULE = "a_package_with_tasks"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that registers a task when it is imported."""
    code = "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control.pendulum:PendulumEnv')\n"
    (tmp_path / f"{MODULE}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield f"gym/{MODULE}:Mine-v0"
    sys.modules.pop(MODULE, None)
    gymnasium.registry.pop("Mine-v0", None)


def test_a_named_module_is_imported_only_for_a_person(module: str) -> None:
    for task in (module, f"gym/{MODULE}.sub:Mine-v0"):
        with pytest.raises(TaskError, match=f"names the module '{MODULE}.*--import {MODULE}"):
            make_env(task)
    assert MODULE not in sys.modules
    assert typed_task(module) == module
    assert MODULE in sys.modules


def test_names_with_two_modules_or_none_are_refused() -> None:
    for task in ("gym/os:path:X-v0", "gym/os:X", "gym/:X-v0"):
        with pytest.raises(TaskError):
            make_env(task)
    for task in ("gym/.relative:X-v0", "gym/no_such_package:X-v0", "gym/a b:X-v0"):
        with pytest.raises(TaskError, match="cannot be made"):
            typed_task(task)
