"""What agents of every kind have in common: a list of tasks with heads of their own, noise, and a state to save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from ctrlformer.agents.optimiser import Optimiser
from ctrlformer.config import Config
from ctrlformer.errors import NonFiniteError, TaskError
from ctrlformer.replay import Replay
from ctrlformer.replay.rehearsal import RehearsalBuffer


class Heads(Protocol):
    """A task's own networks."""

    action_dim: int
    copied: bool
    """Whether they began as an earlier task's."""


H = TypeVar("H", bound=Heads)


class Learner(ABC, Generic[H]):
    """The part of an agent that does not depend on how it learns."""

    def __init__(self, config: Config, device: torch.device | str, seed: int) -> None:
        self.config = config
        self.device = torch.device(device)
        self.tasks: list[str] = []
        self.heads = nn.ModuleList()  # one for every task
        self.updates = 0
        self.task_updates: dict[str, int] = {}  # each task's own
        self._warmup_updates = 0  # of the stage under way
        self._seed = seed
        # Noise has its own generator, so that nothing else that draws from torch changes a training.
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @property
    @abstractmethod
    def _modules(self) -> dict[str, nn.Module]:
        """All networks, by the names of their files in a checkpoint."""

    @property
    @abstractmethod
    def _optimisers(self) -> Sequence[Optimiser]: ...

    # Tasks

    @property
    def action_dims(self) -> dict[str, int]:
        """The number of actions of every task, in the order in which they were added."""
        return {task: heads.action_dim for task, heads in zip(self.tasks, self._all_heads, strict=True)}

    def has_copied_heads(self, task: str) -> bool:
        """Whether the task's heads were copied, so that it need not begin with random actions."""
        return self._heads(task).copied

    def _warms_up(self, task: str) -> bool:
        """Whether critics learn alone: copied ones value another task's rewards, and an actor that follows them
        unlearns what was copied."""
        return self.has_copied_heads(task) and self.task_updates[task] < self._warmup_updates

    def _rate_share(self, task: str) -> float:
        """Share of the learning rate at the task's next update: it rises over the warm-up."""
        return (self.task_updates[task] + 1) / self._warmup_updates if self._warms_up(task) else 1.0

    def _append(self, task: str, heads: nn.Module) -> None:
        self.tasks.append(task)
        self.heads.append(heads)
        self.task_updates[task] = 0

    def _index(self, task: str) -> int:
        if task not in self.tasks:
            raise TaskError(f"this agent has not learnt {task!r}: it knows {', '.join(self.tasks) or 'no task yet'}")
        return self.tasks.index(task)

    def _heads(self, task: str) -> H:
        return self._all_heads[self._index(task)]

    @property
    def _all_heads(self) -> list[H]:
        return cast("list[H]", list(self.heads))

    def protect(self, finished: Sequence[RehearsalBuffer]) -> None:
        """Nothing, unless an agent measures what earlier tasks need."""

    # Learning

    def check(self) -> None:
        """Raise if an update since the start met a loss or gradient that is not finite (see `Optimiser`)."""
        for optimiser in self._optimisers:
            optimiser.check()

    def diagnose(self, task: str, replay: Replay) -> dict[str, float]:
        """Nothing, unless an agent knows what tells of its health."""
        return {}

    def _check_rewards(self, reward: Tensor) -> None:
        """Where looking costs nothing; on a GPU it would make the processor wait, and losses show it, too."""
        if self.device.type == "cpu" and not bool(torch.isfinite(reward).all()):
            raise NonFiniteError("a reward in the batch is not finite: check the task's rewards")

    def _count_update(self, task: str) -> None:
        self.updates += 1
        self.task_updates[task] += 1

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    # Saving

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything that decides what the agent does next."""
        saved = {name: dict(module.state_dict()) for name, module in self._modules.items()}
        for optimiser in self._optimisers:
            saved[f"{optimiser.name}_optimiser"] = optimiser.tensors()
        saved["random"] = {
            "generator": self.generator.get_state(),
            "updates": torch.tensor(self.updates),
            "task_updates": torch.tensor(list(self.task_updates.values()), dtype=torch.int64),
        }
        return saved

    def load_tensors(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over `tensors()` of an agent with the same config and tasks."""
        for name, module in self._modules.items():
            module.load_state_dict(dict(saved[name]))
        for optimiser in self._optimisers:
            optimiser.load_tensors(saved[f"{optimiser.name}_optimiser"])
        self.generator.set_state(saved["random"]["generator"].cpu())
        self.updates = int(saved["random"]["updates"])
        # Checkpoints of earlier versions counted the updates of all tasks together.
        counts = saved["random"].get("task_updates", torch.full((len(self.tasks),), self.updates)).tolist()
        self.task_updates = dict(zip(self.tasks, counts, strict=True))
