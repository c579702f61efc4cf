"""dm_control's tasks: they build, step, repeat exactly by seed, and look as they should."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.envs import list_tasks, make_env, pixel_fingerprint
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.errors import NonFiniteError

QUICK = ["cartpole_swingup", "reacher_easy", "lqr_lqr_2_1", "manipulation/reach_site"]
SIMULATED = [task for task in list_tasks() if not task.startswith("toy/")]

Trace = tuple[NDArray[np.uint8], list[float]]


def trace(env: PixelEnv, seed: int, steps: int = 3) -> Trace:
    """All pixels and rewards of an episode's beginning under fixed random actions."""
    rng = np.random.default_rng(seed)
    pixels, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(steps):
        observation, reward, *_ = env.step(rng.uniform(-1, 1, env.action_dim).astype(np.float32))
        pixels.append(observation)
        rewards.append(reward)
    return np.stack(pixels), rewards


def check_task(task: str) -> None:
    """Steps, then the same episode again after another one and in a new environment."""
    env = make_env(task)
    pixels, rewards = trace(env, seed=5)
    assert pixels.shape == (4, 84, 84, 9)
    assert pixels.std() > 1.0
    assert np.isfinite(rewards).all()
    other, _ = trace(env, seed=6, steps=5)
    assert (other[0] != pixels[0]).any()
    again, rewards_again = trace(env, seed=5)
    env.close()
    fresh_env = make_env(task)
    fresh, rewards_fresh = trace(fresh_env, seed=5)
    fresh_env.close()
    assert rewards == rewards_again == rewards_fresh
    assert (pixels == again).all()
    assert (pixels == fresh).all()


@pytest.mark.parametrize("task", QUICK)
def test_episode_repeats_exactly_by_seed(task: str) -> None:
    check_task(task)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in SIMULATED if task not in QUICK])
def test_every_other_task_repeats_exactly_by_seed(task: str) -> None:
    check_task(task)


def test_repeat_sums_the_rewards_of_its_frames() -> None:
    once, eight = make_env("cartpole_balance", EnvConfig(action_repeat=1)), make_env("cartpole_balance")
    assert eight.action_repeat == 8
    action = np.array([0.3], np.float32)
    once.reset(seed=1)
    eight.reset(seed=1)
    rewards = [once.step(action)[1] for _ in range(8)]
    observation, total, _, _, info = eight.step(action)
    assert total == pytest.approx(sum(rewards))
    assert info["frames"] == 8
    assert (observation[..., -3:] == once.render(84)).all()


def test_actions_reach_the_actuators_in_their_own_range() -> None:
    env = make_env("point_mass_easy")
    spec = env._simulator._env.action_spec()  # type: ignore[attr-defined]
    env.reset(seed=1)
    for action, native in ((1.0, spec.maximum), (-1.0, spec.minimum), (0.0, (spec.minimum + spec.maximum) / 2)):
        env.step(np.full(2, action, np.float32))
        np.testing.assert_allclose(env._simulator.physics.data.ctrl, native)  # type: ignore[attr-defined]


def test_time_limit_is_truncated_not_terminated() -> None:
    env = make_env("cartpole_balance", EnvConfig(image_size=8, action_repeat=300))
    env.reset(seed=1)
    ends, frames = [], 0
    for _ in range(4):
        _, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
        ends.append((terminated, truncated))
        frames += info["frames"]
    assert ends == [(False, False)] * 3 + [(False, True)]
    assert frames == 1000


def test_the_task_s_own_end_is_terminated() -> None:
    env = make_env("lqr_lqr_2_1")
    env.reset(seed=1)
    assert env.step(np.zeros(1, np.float32))[2:4] == (False, False)
    # lqr is done once everything rests at the origin
    physics = env._simulator.physics  # type: ignore[attr-defined]
    with physics.reset_context():
        physics.data.qpos[:] = physics.data.qvel[:] = 0.0
    assert env.step(np.zeros(1, np.float32))[2:] == (True, False, {"frames": 1})


def test_every_episode_has_an_end() -> None:
    env = make_env("lqr_lqr_2_1", EnvConfig(image_size=8, action_repeat=2000))  # endless in dm_control
    env.reset(seed=1)
    assert env.step(np.ones(1, np.float32))[2:] == (False, True, {"frames": 1000})


@pytest.mark.parametrize("task", ["cartpole_swingup", "walker_walk", "swimmer_swimmer6", "manipulation/reach_site"])
def test_fast_pixels_are_almost_dm_control_s_own(task: str) -> None:
    fast, exact = make_env(task), make_env(task, EnvConfig(render="exact"))
    ours, _ = trace(fast, seed=2, steps=2)
    theirs, _ = trace(exact, seed=2, steps=2)
    assert np.abs(ours.astype(float) - theirs.astype(float)).mean() < 0.1
    fast.close()
    exact.close()


@pytest.mark.parametrize("task", ["cartpole_swingup", "manipulation/reach_site"])
def test_closing_frees_the_picture_in_the_thread_that_drew_it(task: str) -> None:
    """In a process of its own: what goes wrong is printed when the process ends."""
    words = "import sys, threading, ctrlformer\ndef play():\n    env = ctrlformer.make_env(sys.argv[1])\n"
    words += (
        "    env.reset(seed=0)\n    env.close()\nthread = threading.Thread(target=play)\nthread.start()\nthread.join()"
    )
    child = subprocess.run([sys.executable, "-c", words, task], capture_output=True, text=True, check=True)
    assert "EGL" not in child.stderr
    assert "Exception" not in child.stderr


def test_exact_pixels_are_dm_control_s_own() -> None:
    from ctrlformer.envs import suite  # noqa: F401 (fixes the GL backend before dm_control is imported)

    import dm_control.suite  # isort: skip

    theirs = dm_control.suite.load("reacher", "easy", task_kwargs={"random": 3})
    theirs.reset()
    ours, _ = make_env("reacher_easy", EnvConfig(render="exact")).reset(seed=3)
    assert (ours[..., -3:] == theirs.physics.render(84, 84, 0)).all()


def test_a_large_picture_leaves_the_observations_alone() -> None:
    env = make_env("cartpole_swingup")
    before, _ = env.reset(seed=1)
    large = env.render(200)
    assert large.shape == (200, 200, 3)
    assert abs(large.mean() - before.mean()) < 5
    after, _ = env.reset(seed=1)
    assert (before == after).all()


def test_fingerprint_depends_on_the_pixels_alone() -> None:
    assert pixel_fingerprint() == pixel_fingerprint(EnvConfig(action_repeat=3))
    assert pixel_fingerprint(task="toy/reach") != pixel_fingerprint(task="toy/slide")
    assert pixel_fingerprint(EnvConfig(image_size=40)) != pixel_fingerprint()


def test_a_diverged_simulation_is_named() -> None:
    env = make_env("cartpole_swingup")
    env.reset(seed=1)
    env._simulator.physics.data.qvel[:] = np.nan  # type: ignore[attr-defined]
    with pytest.raises(NonFiniteError, match="cartpole_swingup"):
        env.step(np.zeros(1, np.float32))


def test_what_moves_is_told_from_the_background() -> None:
    """Cart and pole are orange; rail, floor and sky are not theirs."""
    with closing(make_env("cartpole_swingup")) as env:
        pixels, _ = env.reset(seed=0)
        mask = env.moving()
    assert mask is not None
    assert mask.shape == (84, 84)
    assert 0.005 < mask.mean() < 0.05
    red, _, blue = pixels[..., -3:].astype(int).transpose(2, 0, 1)
    orange = red > blue + 40
    assert (orange & mask).sum() > 0.8 * orange.sum()
    assert orange[mask].mean() > 0.5


def test_drawing_the_mask_leaves_the_pictures_as_they_are() -> None:
    with closing(make_env("cartpole_swingup")) as env:
        env.reset(seed=0)
        before = env.render(84)
        env.moving()
        assert np.array_equal(env.render(84), before)
