"""The contract of agents: all that training, playing and loading know of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.config import Config, TransferConfig
from ctrlformer.encoders import FrameReader
from ctrlformer.replay import Replay
from ctrlformer.replay.rehearsal import Outputs, Rehearsal, RehearsalBuffer

Act = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


class Policy(Protocol):
    """Plays one episode: called with its observations (H, W, C) one after the other, each answered by an action (A,).

    It may remember what it saw and did, so every episode needs a new one.
    """

    @property
    def memory(self) -> Tensor | None:
        """All it remembers of its episode so far: `Agent.policy` continues from it after a resume."""

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]: ...


class Memoryless:
    """A policy that looks at the present observation alone."""

    memory = None

    def __init__(self, act: Act) -> None:
        self._act = act

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._act(pixels)


@dataclass(frozen=True)
class TransferSource:
    """What a new task starts from."""

    task: str | None
    """The earlier task whose token and pixel statistics are copied; none: all is new."""
    heads: bool
    """Whether actor and critics are copied too, if they have as many actions."""


class Agent(Protocol):
    """Acts in the tasks it was given, and learns from what their replays hold."""

    config: Config
    device: torch.device
    tasks: list[str]
    updates: int
    reader: FrameReader

    @property
    def action_dims(self) -> dict[str, int]:
        """The number of actions of every task, in the order in which they were added."""

    def add_task(
        self, task: str, action_dim: int, transfer: TransferConfig | None = None, source: TransferSource | None = None
    ) -> None:
        """Make room for one more task; nothing old is replaced. `transfer` begins a later stage, in which the task
        starts from `source`; without one, from the previous task."""

    def protect(self, finished: Sequence[RehearsalBuffer]) -> None:
        """Called when a later stage begins and its tasks are added, with the rehearsal buffers of earlier ones."""

    def has_copied_heads(self, task: str) -> bool:
        """Whether the task's heads were copied from an earlier one: it need not begin with random actions."""

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy:
        """For one episode, from its start, or from where a policy with this `memory` stood; explores, or acts by the
        mean. A task that it has not learnt is a `TaskError`."""

    def outputs(self, task: str, observations: Tensor) -> Outputs:
        """What the task's policy makes of observations (N, H, W, C), each by itself, as it is now."""

    def draw(self, replay: Replay, rng: np.random.Generator) -> Any:
        """A batch for one `update`. Called beside updates, from another thread: it may read settings only."""

    def update(
        self, task: str, batch: Any, progress: float = 0.0, rehearsal: Rehearsal | None = None
    ) -> dict[str, Tensor]:
        """Learn from what `draw` gave; return the metrics to log. `progress` is the stage's, 0 to 1."""

    def diagnose(self, task: str, replay: Replay) -> dict[str, float]:
        """Metrics of how healthy learning is, of an episode that has just ended; nothing changes by it."""

    def check(self) -> None:
        """Raise a `NonFiniteError` if an update since the start met a number that is not finite."""

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything that decides what the agent does next."""

    def load_tensors(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over `tensors()` of an agent with the same config and tasks."""
