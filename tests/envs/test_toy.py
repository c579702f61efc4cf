"""The toy tasks need eyes, and with eyes they are easy."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.envs import make_env, register_envs
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.envs.toy import REWARD_SCALE, TOUCHING

TASKS = {"toy/slide": 1, "toy/slide_sparse": 1, "toy/reach": 2, "toy/reach_sparse": 2}


def centre(frame: NDArray[np.uint8], colour: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Middle (x, y) of the pixels of a colour, in pixels."""
    rows, columns = np.nonzero(colour)
    return np.array([columns.mean(), rows.mean()])


def look_and_go(observation: NDArray[np.uint8], axes: int) -> NDArray[np.float32]:
    """Steer from the white ball to the green one, from the picture alone."""
    frame = observation[..., -3:].astype(int)
    red, green = frame[..., 0], frame[..., 1]
    ball, target = (red > 180), (green > 150) & (red < 120)
    if not target.any():  # hidden behind the ball: there already
        return np.zeros(axes, np.float32)
    way = centre(observation, target) - centre(observation, ball)
    return np.clip(way[:axes] / 6, -1, 1).astype(np.float32)


def play(env: PixelEnv, seed: int, policy: str) -> float:
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        if policy == "random":
            action = rng.uniform(-1, 1, env.action_dim).astype(np.float32)
        elif policy == "still":
            action = np.zeros(env.action_dim, np.float32)
        else:
            action = look_and_go(observation, env.action_dim)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert not terminated
        total, over = total + reward, truncated
    return total


@pytest.mark.parametrize("task", TASKS)
def test_looking_beats_not_looking(task: str) -> None:
    env = make_env(task)
    mean = {policy: np.mean([play(env, seed, policy) for seed in range(10)]) for policy in ("look", "random", "still")}
    assert mean["look"] > 1.6 * mean["random"]
    assert mean["look"] > 1.6 * mean["still"]
    assert mean["look"] > 30  # of 50 frames with at most 1 each


@pytest.mark.parametrize("task", TASKS)
def test_the_target_is_seen_and_differs_between_episodes(task: str) -> None:
    env = make_env(task)
    pictures = [env.reset(seed=seed)[0][..., -3:] for seed in range(5)]
    targets = [centre(p, (p[..., 1] > 150) & (p[..., 0] < 120)) for p in pictures]
    assert np.ptp(targets, axis=0)[: TASKS[task]].min() > 10


@pytest.mark.parametrize("task", TASKS)
def test_gymnasium_accepts_it(task: str) -> None:
    register_envs()
    env = gymnasium.make(f"ctrlformer/{task.replace('/', '_')}-v0")
    check_env(env.unwrapped)
    assert env.action_space.shape == (TASKS[task],)


def test_an_episode_has_fifty_frames() -> None:
    env = make_env("toy/reach")
    env.reset(seed=0)
    frames, steps, over = 0, 0, False
    while not over:
        *_, over, info = env.step(np.zeros(2, np.float32))
        frames, steps = frames + info["frames"], steps + 1
    assert (frames, steps) == (50, 25)


def test_larger_pictures_show_the_same() -> None:
    env = make_env("toy/reach")
    small = env.reset(seed=4)[0][..., -3:]
    large = env.render(252)
    shrunk = large.reshape(84, 3, 84, 3, 3).mean(axis=(1, 3))
    assert np.abs(shrunk - small).mean() < 1.0


def test_the_sparse_task_rewards_touching_only() -> None:
    one_frame = EnvConfig(action_repeat=1)
    dense, sparse = (make_env(task, one_frame) for task in ("toy/reach", "toy/reach_sparse"))
    near, touched = np.exp(-REWARD_SCALE * TOUCHING), []
    for seed in range(60):
        dense.reset(seed=seed)
        sparse.reset(seed=seed)
        action = np.random.default_rng(seed).uniform(-1, 1, 2).astype(np.float32)
        for _ in range(30):  # the same straight walk in both
            touched.append(sparse.step(action)[1])
            assert touched[-1] == float(dense.step(action)[1] > near)
    assert 0 < sum(touched) < len(touched)
