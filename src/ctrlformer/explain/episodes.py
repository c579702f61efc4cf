"""Episodes to look at: what the agent saw, what of it moves, and what it had earned by then."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.envs import make_env
from ctrlformer.training.collect import VIDEO, ActingAgent, episode_seed, play


class Episode(NamedTuple):
    observations: NDArray[np.uint8]  # (T, H, W, C)
    moving: NDArray[np.bool_] | None  # (T, H, W); none where the simulator cannot tell
    earned: NDArray[np.float64]  # (T,) return before each observation
    total: float


def record_episode(agent: ActingAgent, task: str, config: EnvConfig, seed: int) -> Episode:
    """One episode with the mean action, the one that `eval --video` films."""
    observations, masks, earned = [], [], []
    with closing(make_env(task, config)) as env:

        def note(pixels: NDArray[np.uint8], so_far: float) -> None:
            observations.append(pixels)
            masks.append(env.moving())
            earned.append(so_far)

        total = play(agent, env, task, episode_seed(seed, VIDEO), on_observation=note)
    known = [mask for mask in masks if mask is not None]
    moving = np.stack(known) if len(known) == len(masks) else None
    return Episode(np.stack(observations), moving, np.array(earned), total)


def share_on_moving(maps: NDArray[np.float32], moving: NDArray[np.bool_]) -> float:
    """The share of all attention that lies on what moves: maps and masks (T, H, W).

    >>> share_on_moving(np.array([[[3.0, 1.0]]], np.float32), np.array([[[True, False]]]))
    0.75
    """
    return float(maps[moving].sum(dtype=np.float64) / max(maps.sum(dtype=np.float64), 1e-12))
