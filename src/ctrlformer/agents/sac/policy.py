"""How an agent plays an episode, and the noise it explores with: white, or pink, whose actions wander."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from ctrlformer.agents.sac.agent import SacAgent

OCTAVES = 8  # of time constants: 1, 2, 4, ... 128 steps

Draw = Callable[..., Tensor]  # a shape to standard normal numbers


class PinkNoise:
    """Standard normal noise with a spectrum of about 1/f, one step of an episode after the other.

    White noise cancels itself out within a few steps, so that a policy which stands still stays where it is. A sum of
    processes with time constants of every octave has slow parts too, and is still standard normal at each step, as the
    entropy of the policy assumes. `memory` (OCTAVES, A) continues where an earlier one stood.
    """

    def __init__(self, draw: Draw, action_dim: int, memory: Tensor | None = None) -> None:
        self._draw, self._shape = draw, (OCTAVES, action_dim)
        if memory is not None and (memory.shape != self._shape or memory.dtype != torch.float32):
            raise ValueError(f"noise of {memory.dtype} {tuple(memory.shape)}, not {self._shape}")
        self.memory = draw(*self._shape) if memory is None else memory
        self._keep = torch.exp(-1 / 2.0 ** torch.arange(OCTAVES, dtype=torch.float32))[:, None]

    def __call__(self) -> Tensor:
        """The next step's noise (1, A)."""
        keep = self._keep.to(self.memory.device)
        noise: Tensor = self.memory.sum(0, keepdim=True) / OCTAVES**0.5
        self.memory = keep * self.memory + (1 - keep.square()).sqrt() * self._draw(*self._shape)
        return noise


class SacPolicy:
    """Plays one episode of a task: samples with the noise it is given, or takes the mean action. It remembers its own
    last actions, `past` (K, A), newest first; there are no others but a run's random first ones."""

    def __init__(self, agent: SacAgent, task: str, past: Tensor, noise: Callable[[], Tensor] | None = None) -> None:
        self._agent, self._task, self._past, self._noise = agent, task, past, noise
        self._actor = agent.actor(task)

    @property
    def memory(self) -> Tensor | None:
        """The last actions, and below them the state of pink noise."""
        parts = [self._past] if len(self._past) else []
        if isinstance(self._noise, PinkNoise):
            parts.append(self._noise.memory)
        return torch.cat(parts) if parts else None

    @torch.no_grad()
    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        features = self._agent.features(self._task, pixels, self._past.view(1, -1))  # (1, F)
        noise = self._noise
        action = self._actor.sample(features, noise()).action if noise else self._actor.mean_action(features)
        self._past = torch.cat([action, self._past])[: len(self._past)]
        numbers: NDArray[np.float32] = action[0].cpu().numpy()
        return numbers
