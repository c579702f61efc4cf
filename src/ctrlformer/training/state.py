"""What a checkpoint stores of the loop, in `trainer.json` and `episodes.safetensors`: all of it is validated here."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.agents.base import TransferSource
from ctrlformer.config import Config
from ctrlformer.config.decode import decode
from ctrlformer.errors import CheckpointError, ConfigError
from ctrlformer.storage.checkpoint import Checkpoint
from ctrlformer.training.progress import Averages, TrainingProgress

if TYPE_CHECKING:
    from ctrlformer.training.stage import Lane

MOST_ACTIONS = 10_000  # of one task: far more than any has
# Checkpoints of earlier versions lack these.
ADDED_LATER = {"trainer.position.tasks[].updates", "trainer.position.tasks[].probe_steps", "trainer.sources"}


@dataclass(frozen=True)
class AveragesState:
    """`Averages` as JSON."""

    sums: dict[str, float]
    counts: dict[str, int]

    def __post_init__(self) -> None:
        if self.sums.keys() != self.counts.keys() or min(self.counts.values(), default=1) < 1:
            raise ConfigError("trainer: averages without their counts")


@dataclass(frozen=True)
class LaneState:
    """A lane as JSON. Only `capture` and `restore` know what is stored of a lane; `OpenEpisode` has its tensors."""

    averages: AveragesState
    random: dict[str, Any]
    """State of numpy's generator."""
    episode: int
    fingerprint: int | None
    replay: dict[str, Any]
    """What `Replay.flush` returned; `Replay.restore` validates it."""

    def __post_init__(self) -> None:
        if self.episode < 0:
            raise ConfigError(f"trainer: episode {self.episode}")
        try:
            np.random.default_rng(0).bit_generator.state = self.random
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError) as error:
            raise ConfigError(f"trainer: not the state of a generator ({reprlib.repr(error)})") from None

    @classmethod
    def capture(cls, lane: Lane) -> LaneState:
        """Take the lane's state; its replay is on the disk when this returns."""
        sums = {name: float(value) for name, value in lane.averages.sums.items()}
        return cls(
            AveragesState(sums, dict(lane.averages.counts)),
            lane.batches.random_state,
            lane.collector.episode,
            lane.collector.fingerprint(),
            lane.replay.flush(),
        )

    def restore(self, lane: Lane, episode: OpenEpisode) -> bool:
        """Put a new lane, which has the stored replay already, where it was captured, in the middle of an episode too.

        Return whether the open episode shows the same pixels as then.
        """
        lane.averages = Averages(dict(self.averages.sums), dict(self.averages.counts))
        lane.rng.bit_generator.state = self.random
        lane.collector.reopen(self.episode, episode.actions, episode.memory)
        return lane.collector.fingerprint() == self.fingerprint


class OpenEpisode(NamedTuple):
    """The tensors that a checkpoint stores of a lane: its open episode so far."""

    actions: NDArray[np.float32]  # (T, A); none between two episodes
    memory: Tensor | None  # what the episode's policy remembers

    @classmethod
    def capture(cls, lane: Lane) -> OpenEpisode:
        return cls(np.array(lane.collector.actions, np.float32), lane.collector.memory)

    def tensors(self, index: int) -> dict[str, Tensor]:
        """By their names in the checkpoint's file `episodes`."""
        saved = {f"{index}": torch.from_numpy(self.actions)}
        return saved if self.memory is None else saved | {f"{index}/memory": self.memory}

    @classmethod
    def read(cls, saved: Checkpoint, index: int, action_dim: int) -> OpenEpisode:
        actions: NDArray[np.float32] = saved.tensors["episodes"][f"{index}"].numpy()
        if actions.dtype != np.float32 or not (actions.size == 0 or actions.shape[1:] == (action_dim,)):
            raise ValueError(f"actions {actions.dtype} {actions.shape} of a task with {action_dim}")
        if not np.isfinite(actions).all():
            raise ValueError("actions that are not finite")
        return cls(actions, saved.tensors["episodes"].get(f"{index}/memory"))


@dataclass(frozen=True)
class TrainerState:
    """What `Trainer` stores beside the agent's tensors."""

    position: TrainingProgress
    action_dims: dict[str, int]
    """Of every task the agent knows, in the order of learning."""
    kept: dict[str, str]
    """Checksums of the kept observations of every finished task."""
    lanes: dict[str, LaneState]
    """Of the stage under way; empty between two stages."""
    logs: dict[str, int]
    sources: dict[str, TransferSource] = field(default_factory=dict)
    """What each task of later stages started from, where the settings leave it to probes or name it."""

    @classmethod
    def read(cls, saved: Checkpoint, config: Config) -> TrainerState:
        """From a checkpoint of a run with this config; a `CheckpointError` if it makes no sense or does not fit."""
        try:
            state = decode(cls, saved.state.get("trainer"), "trainer", ADDED_LATER)
            assert isinstance(state, cls)
            state._check(config)
        except ConfigError as error:
            raise CheckpointError(f"checkpoint {saved.path} does not fit this run: {error}") from None
        return state

    def _check(self, config: Config) -> None:
        at, stages = self.position, config.stages
        numbers = [at.stage, at.retests, at.earlier_frames, at.earlier_steps, at.retested or 0]
        for task in at.tasks:
            numbers += [task.frames, task.steps, task.updates, task.evaluated or 0, task.probe_steps]
        if min(numbers) < 0 or at.stage > len(stages) or at.minutes < 0:
            raise ConfigError(f"trainer.position is nowhere in a curriculum of {len(stages)} stages")
        finished = [task for stage in stages[: at.stage] for task in stage.tasks]
        under_way = list(stages[at.stage].tasks) if self.lanes and at.stage < len(stages) else []
        _same("lanes", self.lanes, under_way)
        _same("kept", self.kept, finished)
        _same("action_dims", self.action_dims, finished + under_way)
        if len(at.tasks) != len(self.lanes) or at.retests > len(self.kept):
            raise ConfigError("trainer.position does not fit trainer.lanes")
        self._check_sources(config)
        if not all(1 <= number <= MOST_ACTIONS for number in self.action_dims.values()):
            raise ConfigError("trainer.action_dims: not numbers of actions")

    def _check_sources(self, config: Config) -> None:
        """Whether heads were copied is in no tensor: it follows from these."""
        earlier: list[str] = []
        chosen = {}
        for number, stage in enumerate(config.stages):
            for task in stage.tasks:
                if number and stage.transfer.source != "previous" and task in self.action_dims:
                    chosen[task] = tuple(earlier)
            earlier += stage.tasks
        if self.sources.keys() != chosen.keys():
            raise ConfigError(
                f"trainer.sources has {reprlib.repr(list(self.sources))}, not {reprlib.repr(list(chosen))}"
            )
        for task, source in self.sources.items():
            if source.task is not None and source.task not in chosen[task]:
                raise ConfigError(f"trainer.sources: {task!r} cannot start from {reprlib.repr(source.task)}")


@contextmanager
def must_fit(path: Path) -> Iterator[None]:
    """Tensors of a checkpoint that fit neither the config nor each other fail here in many ways: all are one."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError, MemoryError) as error:
        why = " ".join(f"{type(error).__name__} {error}".split())
        raise CheckpointError(f"checkpoint {path} does not fit this run: {why}"[:300]) from error


def _same(name: str, found: dict[str, Any], expected: Sequence[str]) -> None:
    if list(found) != list(expected):
        raise ConfigError(f"trainer.{name} has tasks {reprlib.repr(list(found))}, not {reprlib.repr(expected)}")
