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
from ctrlformer.storage.run_folder import Row
from ctrlformer.training.callbacks import Callback

FOLDERS = ("tensorboard", "wandb")  # what loggers write in the run folder
NO_METRICS = {"stage", "task", "frames", "steps", "updates", "episodes", "seconds", "learner_busy", "minutes"}


class Logger(Protocol):
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


class FaultTolerantLogger(Callback):
    """Passes metrics and scores on to a logger. If that fails, it warns once and goes on without the logger."""

    def __init__(self, name: str, open_logger: Callable[[], Logger], say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._logger: Logger | None = None
        self._try(lambda: self._open(open_logger))

    def _open(self, open_logger: Callable[[], Logger]) -> None:
        self._logger = open_logger()

    def on_log(self, row: Row, total_frames: int) -> None:
        metrics = {name: value for name, value in row.items() if name not in NO_METRICS}
        self._log(f"{row['task']}/training", metrics, total_frames)

    def on_evaluation(self, row: Row, total_frames: int) -> None:
        kind = row["kind"] if row["kind"] in ("retest", "probe") else "evaluation"
        name = f"{kind}/{row['source']}" if kind == "probe" else kind
        self._log(f"{row['task']}/{name}", {"mean": row["mean"], "std": row["std"]}, total_frames)

    def on_stop(self, finished: bool) -> None:
        if logger := self._logger:
            self._try(logger.close)

    def _log(self, prefix: str, values: Mapping[str, float], frames: int) -> None:
        if logger := self._logger:
            named = {f"{prefix}/{name}": value for name, value in values.items()}
            self._try(lambda: logger.log(named, frames))

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - a service or disk of others; the run's own logs do not need it
            self._logger = None
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            self._say(f"warning: {self._name} failed ({why}): continuing without it, the run's own logs are complete")


def check_loggers(config: Config) -> None:
    """Refuse, before a run folder exists, a logger that was asked for by name and is not installed."""
    if config.training.wandb and not _installed("wandb"):
        raise ConfigError("wandb is not installed: pip install 'ctrlformer[wandb]', or leave out --wandb")


def open_loggers(folder: Path, config: Config, frames: int, say: Callable[[str], None]) -> list[Callback]:
    """Return the loggers that the config wants and this machine has; `say` is told of one that fails."""
    loggers: dict[str, Callable[[], Logger]] = {}
    if config.training.tensorboard and _installed("tensorboard"):
        loggers["TensorBoard"] = lambda: TensorBoard(folder, frames)
    if config.training.wandb:
        loggers["Weights & Biases"] = lambda: WandB(folder, config)
    return [FaultTolerantLogger(name, opened, say) for name, opened in loggers.items()]


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
