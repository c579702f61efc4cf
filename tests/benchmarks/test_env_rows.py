"""dm_control's own wrapper shows the same states as our environment."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from benchmarks.env_rows import LARGEST_DIFFERENCE, SEED, TASK, WrappedTask, env_step, mean_difference
from benchmarks.table import Effort
from ctrlformer.config import EnvConfig
from ctrlformer.envs import make_env


def test_exact_pixels_are_those_of_dm_controls_wrapper() -> None:
    config = EnvConfig(render="exact")
    with closing(make_env(TASK, config)) as env, closing(WrappedTask(config, env.action_repeat)) as wrapped:
        first, _ = env.reset(seed=SEED)
        assert np.array_equal(wrapped.reset(SEED), first)
        for _ in range(3):
            action = np.array([0.7], np.float32)
            assert np.array_equal(wrapped.step(action), env.step(action)[0])


def test_the_row_says_how_far_pixels_differ() -> None:
    found = env_step(Effort(repeats=1, paper_batch=1, cnn_batch=1, transitions=1, learnt_steps=1))
    assert found.sound
    assert 0 < found.ours.low <= found.ours.high < 10
    assert "of 255" in found.note


def test_a_difference_is_a_mean_over_grey_levels() -> None:
    black, grey = np.zeros((2, 2, 9), np.uint8), np.full((2, 2, 9), 200, np.uint8)
    assert mean_difference([black, grey], [grey, grey]) == 100.0
    assert mean_difference([black], [grey]) > LARGEST_DIFFERENCE
