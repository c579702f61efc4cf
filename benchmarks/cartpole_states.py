"""Cartpole pictures with the state behind them, for the supervised probe of encoders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.envs.suite import make_suite

STATE_NAMES = ("cart position", "cos angle", "sin angle", "cart velocity", "pole velocity")
FRAMES_PER_STEP = 8
STACKS_PER_START = 8  # stacks from each random start, so that most renders serve three stacks


class LabelledStacks(NamedTuple):
    pixels: NDArray[np.uint8]  # (N, 84, 84, 9)
    states: NDArray[np.float32]  # (N, 5), in the order of STATE_NAMES, each with mean 0 and deviation 1


def cartpole_states(count: int, seed: int = 0, config: EnvConfig | None = None) -> LabelledStacks:
    """`count` stacks of three frames from random positions, angles and speeds, under random actions."""
    config = config or EnvConfig()
    rng = np.random.default_rng(seed)
    simulator = make_suite("cartpole_swingup", "cartpole", "swingup", config)
    physics = simulator.physics
    pixels: list[NDArray[np.uint8]] = []
    states: list[list[float]] = []
    while len(pixels) < count:
        simulator.reset(int(rng.integers(2**31)))
        # The camera sees about 1.2 to either side; most carts must stay in view to be read.
        physics.data.qpos[:] = rng.uniform([-0.8, -np.pi], [0.8, np.pi])
        physics.data.qvel[:] = rng.normal(0.0, [0.7, 4.0])
        frames: list[NDArray[np.uint8]] = []
        for _ in range(STACKS_PER_START + config.frame_stack - 1):
            action = rng.uniform(-1, 1, 1)
            for _ in range(FRAMES_PER_STEP):
                simulator.step(action)
            frames.append(simulator.pixels(config.image_size))
            if len(frames) >= config.frame_stack:
                pixels.append(np.concatenate(frames[-config.frame_stack :], axis=-1))
                (x, angle), (x_speed, angle_speed) = physics.data.qpos, physics.data.qvel
                states.append([x, np.cos(angle), np.sin(angle), x_speed, angle_speed])
    simulator.close()
    labels = np.array(states[:count], np.float32)
    return LabelledStacks(np.stack(pixels[:count]), (labels - labels.mean(0)) / labels.std(0))
