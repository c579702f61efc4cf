"""Commands that train: `train`, `resume` and `add`. What a command does is imported when it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ctrlformer.cli.arguments import Modules, Run
from ctrlformer.config import (
    AgentConfig,
    Config,
    EncoderConfig,
    EnvConfig,
    Precision,
    TrainingConfig,
    TransferConfig,
    presets,
)
from ctrlformer.config.dreamer import DreamerConfig
from ctrlformer.errors import CtrlFormerError
from ctrlformer.training.signals import EXIT_WITHIN

if TYPE_CHECKING:
    from ctrlformer.storage.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Train:
    """Learn tasks from pixels, one after the other, in a new run folder."""

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TASK [TASK ...]")]
    """Tasks to learn, such as cartpole_swingup; `ctrlformer tasks` lists them."""
    preset: str
    """Where the settings below start from; `ctrlformer presets` lists them."""
    frames: int | None = None
    """Simulator steps for each task; short for --training.frames."""
    seed: int = 1
    """Everything random follows from it."""
    run: Path | None = None
    """Run folder; none makes runs/TASK-PRESET-seedS."""
    together: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Learn the tasks together in one stage, not one after the other; each gets the whole budget."""
    retest_every: int | None = None
    """Frames between two retests of earlier tasks during a stage; short for --transfer.retest-every-frames."""
    precision: Precision | None = None
    """Compute precision; short for --training.precision."""
    wandb: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also log to Weights & Biases; short for --training.wandb."""
    env: Annotated[EnvConfig, tyro.conf.FlagConversionOff]
    encoder: Annotated[EncoderConfig, tyro.conf.FlagConversionOff]
    agent: Annotated[AgentConfig, tyro.conf.FlagConversionOff]
    dreamer: Annotated[DreamerConfig, tyro.conf.FlagConversionOff]
    transfer: Annotated[TransferConfig, tyro.conf.FlagConversionOff]
    training: Annotated[TrainingConfig, tyro.conf.FlagConversionOff]

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Train:
        """The flags' defaults are those of the preset that the arguments name."""
        base = presets.preset(_value_of("--preset", arguments) or "compact")
        return cls(tasks=(), preset=base.preset, **_sections(base))

    def __call__(self) -> None:
        from ctrlformer.training import launch

        short: dict[str, Any] = {"frames": self.frames, "precision": self.precision, "wandb": self.wandb or None}
        given = {name: value for name, value in short.items() if value is not None}
        config = Config(self.tasks, self.together, self.preset, self.seed, **_sections(self))
        config = dataclasses.replace(
            config,
            transfer=_with_retests(self.transfer, self.retest_every),
            training=dataclasses.replace(self.training, **given),
        )
        _train(launch.start, config, self.run)


@dataclass(frozen=True)
class Resume:
    """Continue exactly where a run stopped, in the middle of an episode too."""

    run: Run
    """Run folder."""
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    def __call__(self) -> None:
        from ctrlformer.training import launch

        _train(launch.resume, self.run)


@dataclass(frozen=True)
class Add:
    """Learn one more task on top of a finished run."""

    run: Run
    """Run folder."""
    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """The new task."""
    frames: int | None = None
    """Simulator steps for it; none takes the run's own budget of a task."""
    into: Path | None = None
    """Leave RUN as it is and continue in a copy of it, in this new folder."""
    retest_every: int | None = None
    """Frames between two retests of earlier tasks; short for --transfer.retest-every-frames."""
    transfer: TransferConfig = TransferConfig()  # noqa: RUF009 (frozen)
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Any:
        """The transfer flags' defaults are those of the run that the arguments name, if it can be read."""
        from ctrlformer.storage.run_folder import RunFolder

        with contextlib.suppress(CtrlFormerError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.redirect_stdout(io.StringIO()):
                command = tyro.cli(cls, args=arguments)
            return dataclasses.replace(command, transfer=RunFolder.open(command.run).config.transfer)
        return tyro.MISSING_NONPROP  # the real parse, or the command itself, says what is wrong

    def __call__(self) -> None:
        from ctrlformer.training import launch

        transfer = _with_retests(self.transfer, self.retest_every)
        _train(launch.add, self.run, self.task, frames=self.frames, transfer=transfer, into=self.into)


def _train(launch: Callable[..., RunFolder], *arguments: object, **settings: object) -> None:
    """Call a function of `training.launch` with progress on the console."""
    from ctrlformer.training.console import console_progress

    with console_progress() as progress:
        run = launch(*arguments, **settings, callbacks=[progress], exit_within=EXIT_WITHIN)
        progress.on_message(f"finished: {run.path}")


def _sections(settings: Any) -> dict[str, Any]:
    """The sections of settings that a config and the flags have in common."""
    return {name: getattr(settings, name) for name in presets.SECTIONS}


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The flag's value, given as two words or with an equals sign.

    >>> _value_of("--preset", ["a", "--preset", "tiny"]), _value_of("--preset", ["--preset=paper"])
    ('tiny', 'paper')
    """
    for word, following in zip_longest(arguments, arguments[1:]):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _with_retests(transfer: TransferConfig, every: int | None) -> TransferConfig:
    return transfer if every is None else dataclasses.replace(transfer, retest_every_frames=every)
