"""Four small pixel tasks in plain numpy, for tests, examples and machines without OpenGL.

A white ball has to be steered onto a green one. Where the green ball lies is drawn anew in every episode
and shown in the picture alone, so a policy that does not look cannot do well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctrlformer.envs.pixels import FrameResult, Mask, Pixels

EPISODE_FRAMES = 50
SPEED = 0.1  # largest move per frame, where the field reaches from -1 to 1
MARGIN = 0.15  # of the picture, kept free around the field so that no ball leaves it
BALL_RADIUS = 0.07  # of the picture
REWARD_SCALE = 2.0  # reward falls from 1 to 1/e over half a unit of distance
TOUCHING = 0.2  # distance below which the sparse task gives its reward

GROUND = np.array([40, 50, 70], np.float64)
TARGET_COLOUR = np.array([60, 220, 90], np.float64)
BALL_COLOUR = np.array([250, 250, 250], np.float64)


class Toy:
    """Steer the ball in `axes` directions: 1 is `toy/slide`, 2 is `toy/reach`; with a sparse reward `toy/slide_sparse`
    and `toy/reach_sparse`."""

    def __init__(self, axes: int, sparse: bool = False) -> None:
        self._axes, self._sparse = axes, sparse
        self.action_low = np.full(axes, -SPEED)
        self.action_high = np.full(axes, SPEED)

    def reset(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._ball, self._target = np.zeros(2), np.zeros(2)
        self._ball[: self._axes] = rng.uniform(-1.0, 1.0, self._axes)
        self._target[: self._axes] = rng.uniform(-1.0, 1.0, self._axes)
        self._frames = 0

    def step(self, action: NDArray[np.float64]) -> FrameResult:
        self._ball[: self._axes] = np.clip(self._ball[: self._axes] + action, -1.0, 1.0)
        self._frames += 1
        distance = float(np.linalg.norm(self._ball - self._target))
        reward = float(distance < TOUCHING) if self._sparse else float(np.exp(-REWARD_SCALE * distance))
        return FrameResult(reward, False, self._frames >= EPISODE_FRAMES)

    def pixels(self, size: int) -> Pixels:
        image = np.broadcast_to(GROUND, (size, size, 3))
        for place, colour in ((self._target, TARGET_COLOUR), (self._ball, BALL_COLOUR)):
            cover = self._disc(place, size)[..., None]  # (size, size, 1)
            image = (1.0 - cover) * image + cover * colour
        return np.rint(image).astype(np.uint8)

    def moving(self, size: int) -> Mask:
        """Both balls: the green one stands elsewhere in every episode."""
        return np.maximum(self._disc(self._target, size), self._disc(self._ball, size)) > 0.5

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _disc(place: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """How much of each pixel a ball covers; soft edges show places between pixels."""
        x, y = (MARGIN + (1.0 - 2.0 * MARGIN) * (place + 1.0) / 2.0) * size
        centres = np.arange(size) + 0.5
        distance = np.hypot(centres[None, :] - x, centres[:, None] - y)  # (size, size)
        cover: NDArray[np.float64] = np.clip(BALL_RADIUS * size - distance + 0.5, 0.0, 1.0)
        return cover
