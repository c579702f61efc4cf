"""TensorBoard and Weights & Biases beside the run's own JSONL logs, each only when wanted and installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ctrlformer.config import Config
from ctrlformer.errors import ConfigError

FOLDERS = ("tensorboard", "wandb")  # what trackers write in the run folder


class Tracker(Protocol):
    """Takes named numbers at a frame, counted over all stages."""

    def log(self, values: Mapping[str, float], frames: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run folder; those of frames that a resume repeats are hidden."""

    def __init__(self, folder: Path, frames: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=frames)

    def log(self, values: Mapping[str, float], frames: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, frames)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """One Weights & Biases run per run folder, continued by a resume."""

    def __init__(self, folder: Path, config: Config) -> None:
        import wandb

        self._run = wandb.init(
            project="ctrlformer",
            name=folder.name,
            id=f"{zlib.crc32(str(folder.resolve()).encode()):08x}-{config.seed}",  # the same for a resume
            resume="allow",
            dir=str(folder),
            config=dataclasses.asdict(config),
        )

    def log(self, values: Mapping[str, float], frames: int) -> None:
        self._run.log({**values, "frames": frames})

    def close(self) -> None:
        self._run.finish()


class Forgiving:
    """A tracker whose failure, at its start or later, is said once; then the training goes on without it."""

    def __init__(self, name: str, open_tracker: Callable[[], Tracker], say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._tracker: Tracker | None = None
        self._try(lambda: self._begin(open_tracker))

    def _begin(self, open_tracker: Callable[[], Tracker]) -> None:
        self._tracker = open_tracker()

    def log(self, values: Mapping[str, float], frames: int) -> None:
        if tracker := self._tracker:
            self._try(lambda: tracker.log(values, frames))

    def close(self) -> None:
        if tracker := self._tracker:
            self._try(tracker.close)

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - a service or disk of others; the run's own logs do not need it
            self._tracker = None
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            self._say(f"warning: {self._name} failed ({why}): going on without it, the run's own logs have everything")


def check_trackers(config: Config) -> None:
    """Refuse, before a run folder exists, a tracker that was asked for by name and is not installed."""
    if config.training.wandb and not _installed("wandb"):
        raise ConfigError("wandb is not installed: pip install 'ctrlformer[wandb]', or leave out --wandb")


def open_trackers(folder: Path, config: Config, frames: int, say: Callable[[str], None]) -> list[Tracker]:
    """The trackers that the config wants and this machine has; `say` is told of one that fails."""
    trackers: list[Tracker] = []
    if config.training.tensorboard and _installed("tensorboard"):
        trackers.append(Forgiving("TensorBoard", lambda: TensorBoard(folder, frames), say))
    if config.training.wandb:
        trackers.append(Forgiving("Weights & Biases", lambda: WandB(folder, config), say))
    return trackers


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
