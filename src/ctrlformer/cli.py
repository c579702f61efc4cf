"""The command line: parses and calls. What a command needs is imported when it runs, so that --help is instant."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import io
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, Protocol

import tyro

from ctrlformer import presets
from ctrlformer.config import (
    AgentConfig,
    Config,
    EncoderConfig,
    EnvConfig,
    Precision,
    TrainingConfig,
    TransferConfig,
    differences,
)
from ctrlformer.dreamer_config import DreamerConfig
from ctrlformer.errors import ConfigError, CtrlFormerError
from ctrlformer.reproduce_command import Reproduce
from ctrlformer.stopping import EXIT_WITHIN
from ctrlformer.switches import spelled_out, switches

LONGEST_LINE = 1000  # of a message, in which a name of any length may stand

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


Modules = Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE [MODULE ...]")]


class Command(Protocol):
    """One subcommand: its fields are the flags, calling it does the work and may give an exit code."""

    def __call__(self) -> int | None: ...


@dataclass(frozen=True)
class Train:
    """Learn tasks from pixels, one after the other, in a new run folder."""

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TASK [TASK ...]")]
    """Tasks to learn, such as cartpole_swingup; `ctrlformer tasks` lists them."""
    preset: str
    """Where the settings below start from; `ctrlformer presets` lists them."""
    frames: int | None
    """Simulator steps for each task; short for --training.frames."""
    seed: int
    """Everything random follows from it."""
    run: Path | None
    """Run folder; none makes runs/TASK-PRESET-seedS."""
    together: Annotated[bool, tyro.conf.FlagCreatePairsOff]
    """Learn the tasks together in one stage, not one after the other; each gets the whole budget."""
    retest_every: int | None
    """Frames between two retests of earlier tasks during a stage; short for --transfer.retest-every-frames."""
    precision: Precision | None
    """Of the networks' products; short for --training.precision."""
    wandb: Annotated[bool, tyro.conf.FlagCreatePairsOff]
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
        return cls(
            tasks=(),
            preset=base.preset,
            frames=None,
            seed=1,
            run=None,
            together=False,
            retest_every=None,
            precision=None,
            wandb=False,
            env=base.env,
            encoder=base.encoder,
            agent=base.agent,
            dreamer=base.dreamer,
            transfer=base.transfer,
            training=base.training,
        )

    def __call__(self) -> None:
        from ctrlformer import launch
        from ctrlformer.progress import watching

        short: dict[str, Any] = {"frames": self.frames, "precision": self.precision, "wandb": self.wandb or None}
        given = {name: value for name, value in short.items() if value is not None}
        config = Config(
            tasks=self.tasks,
            together=self.together,
            preset=self.preset,
            seed=self.seed,
            env=self.env,
            encoder=self.encoder,
            agent=self.agent,
            dreamer=self.dreamer,
            transfer=_with_retests(self.transfer, self.retest_every),
            training=dataclasses.replace(self.training, **given),
        )
        with watching() as progress:
            run = launch.start(config, self.run, progress, EXIT_WITHIN)
            progress.say(f"finished: {run.path}")


@dataclass(frozen=True)
class Resume:
    """Go on exactly where a run stopped, in the middle of an episode too."""

    run: Run
    """Run folder."""
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    def __call__(self) -> None:
        from ctrlformer import launch
        from ctrlformer.progress import watching

        with watching() as progress:
            run = launch.resume(self.run, progress, EXIT_WITHIN)
            progress.say(f"finished: {run.path}")


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
    """Leave RUN as it is and go on in a copy of it, in this new folder."""
    retest_every: int | None = None
    """Frames between two retests of earlier tasks; short for --transfer.retest-every-frames."""
    transfer: TransferConfig = TransferConfig()  # noqa: RUF009 (frozen)
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Any:
        """The transfer flags' defaults are those of the run that the arguments name, if it can be read."""
        from ctrlformer.runs import RunFolder

        with contextlib.suppress(CtrlFormerError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.redirect_stdout(io.StringIO()):
                command = tyro.cli(cls, args=arguments)
            return dataclasses.replace(command, transfer=RunFolder.open(command.run).config.transfer)
        return tyro.MISSING_NONPROP  # the real parse, or the command itself, says what is wrong

    def __call__(self) -> None:
        from ctrlformer import launch
        from ctrlformer.progress import watching

        transfer = _with_retests(self.transfer, self.retest_every)
        with watching() as progress:
            run = launch.add(self.run, self.task, self.frames, transfer, progress, self.into, EXIT_WITHIN)
            progress.say(f"finished: {run.path}")


@dataclass(frozen=True)
class Eval:
    """Score a run's newest checkpoint with the mean action."""

    run: Run
    """Run folder."""
    task: str | None = None
    """Only this task; none scores every task the run has learnt."""
    episodes: int = 10
    """Episodes of each task."""
    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also film one episode of each task into the run folder."""
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    def __call__(self) -> None:
        from ctrlformer.api import evaluate

        for score in evaluate(self.run, task=self.task, episodes=self.episodes, video=self.video):
            print(score)


@dataclass(frozen=True)
class Scores:
    """Tell what runs reached, kept and transferred, with intervals over seeds."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run folders of one curriculum with different seeds."""
    scratch: tuple[Path, ...] = ()
    """Runs that learnt the later tasks alone, to compare the transfer with."""
    frames: int | None = None
    """Compare at this many frames of a task; none takes what all runs have reached."""
    maximum: float = 1000.0
    """Highest return of an episode: what forward transfer is measured against."""
    json: Path | None = None
    """Also write the figures to this file."""

    def __call__(self) -> None:
        from ctrlformer.scores_command import main

        main(list(self.runs), list(self.scratch), self.frames, self.json, self.maximum)


@dataclass(frozen=True)
class Report:
    """Make one HTML page of any set of runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run folders; runs that differ in their seeds only are told together."""
    out: Path | None = None
    """The page; none writes RUN/report.html for a single run, and report.html here for several."""

    def __call__(self) -> None:
        from ctrlformer.report.page import REPORT, write_report

        alone = self.runs[0] / REPORT if len(self.runs) == 1 else Path(REPORT)
        print(write_report(self.runs, self.out or alone))


@dataclass(frozen=True)
class Explain:
    """Show what a run's agent looks at, and how alike its tasks are to it: pictures into RUN/explain."""

    run: Run
    """Run folder."""
    task: str | None = None
    """Only this task; none explains every task the run has learnt."""
    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also film an episode of each task with its attention."""
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    def __call__(self) -> None:
        from ctrlformer.explain.command import main

        print(main(self.run, self.task, self.video, print))


@dataclass(frozen=True)
class Tasks:
    """List the tasks that can be learnt."""

    def __call__(self) -> None:
        from ctrlformer.envs import list_tasks

        print("\n".join(list_tasks()))
        print("gym/ID for any Gymnasium environment with continuous actions, such as gym/CarRacing-v3")


@dataclass(frozen=True)
class Presets:
    """Show the presets, or how two of them differ."""

    diff: tuple[str, str] | None = None
    """Two presets to compare."""

    def __call__(self) -> None:
        from rich.console import Console
        from rich.table import Table

        names = self.diff or tuple(presets.PRESETS)
        configs = [presets.preset(name) for name in names]
        fields = {field: None for config in configs for field in differences(configs[0], config) if field != "preset"}
        table = Table("setting", *names)
        for field in fields:
            table.add_row(field, *(str(_field(config, field)) for config in configs))
        Console().print(table)


@dataclass(frozen=True)
class Doctor:
    """Check this machine, and print what mends it."""

    def __call__(self) -> int:
        from ctrlformer.doctor import run_doctor

        return run_doctor(print)


@dataclass(frozen=True)
class Demo:
    """Learn two tasks one after the other in about six minutes, and show what came of it."""

    run: Path | None = None
    """Run folder; none makes a new one in runs/."""

    def __call__(self) -> None:
        from ctrlformer.demo import main

        main(self.run, EXIT_WITHIN)


@dataclass(frozen=True)
class Probe:
    """Rank encoders in minutes: how well each learns to read a cartpole's state from pixels."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PRESET [PRESET ...]")] = (
        "compact",
        "drq",
    )
    """Presets whose encoders are compared; paper and official take minutes each."""
    updates: int = 300
    """Updates of each encoder."""
    learning_rate: float = 5e-4
    seed: int = 0
    json: Path | None = None
    """Also write the figures to this file."""

    def __call__(self) -> None:
        from ctrlformer.bench.probe import main

        main(self.presets, self.updates, self.learning_rate, self.seed, self.json)


@dataclass(frozen=True)
class Bench:
    """Measure this machine's speed side by side: ours beside the paper's listings and other libraries."""

    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Fewer repeats and smaller batches: under five minutes on two cores."""
    rows: str | None = None
    """Only these rows, separated by commas, such as update_compact,env_step."""
    json: Path | None = None
    """Also write the table to this file."""

    def __call__(self) -> None:
        from ctrlformer.bench.command import main

        main(self.rows.split(",") if self.rows else [], self.quick, self.json)


COMMANDS: dict[str, type[Command]] = {
    "train": Train,
    "resume": Resume,
    "add": Add,
    "eval": Eval,
    "scores": Scores,
    "report": Report,
    "explain": Explain,
    "tasks": Tasks,
    "presets": Presets,
    "doctor": Doctor,
    "demo": Demo,
    "probe": Probe,
    "bench": Bench,
    "reproduce": Reproduce,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 after a clear line on stderr, or 130/143 after a signal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    before = signal.signal(signal.SIGTERM, _terminate)  # ending early runs every clean-up, and is 143 everywhere
    show_warning, warnings.showwarning = warnings.showwarning, _show_warning  # type: ignore[assignment]
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_overview())
            return 0
        command = _parse(arguments)
        _import(getattr(command, "modules", ()))
        return command() or 0
    except (CtrlFormerError, OSError) as error:
        print(f"error: {_plain_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
        warnings.showwarning = show_warning


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _import(modules: Sequence[str]) -> None:
    """What the person at the command line trusts; a run's own files are never asked."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"--import {module}: {error}") from error


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {_plain_line(str(message))}", file=sys.stderr)


def _plain_line(text: str) -> str:
    """One line without control characters: a name in it may come from a stranger's file.

    >>> _plain_line("a\\nb\\x1b[2J")
    'a\\\\nb\\\\x1b[2J'
    """
    shown = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ..."
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in shown)


def _parse(arguments: Sequence[str]) -> Command:
    name, *rest = spelled_out(arguments)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        raise ConfigError(
            f"unknown command {name!r}: {f'did you mean {near[0]!r}?' if near else 'see ctrlformer --help'}"
        )
    kind = COMMANDS[name]
    default: Any = kind.defaults(rest) if kind in (Train, Add) else tyro.MISSING_NONPROP
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            program = f"ctrlformer {name}"
            command: Command = tyro.cli(kind, args=rest, prog=program, default=default, registry=switches)
    except SystemExit as left:
        if left.code == 2:
            raise ConfigError(f"{_one_line(complaint.getvalue())} (see ctrlformer {name} --help)") from None
        raise
    return command


def _one_line(box: str) -> str:
    """What tyro's box of several lines says, without its frame and its repeated help.

    >>> _one_line("╭─ Required ─╮\\n│ Missing:  │\\n│   RUN     │\\n│ ───────── │\\n│ For full helptext ... │\\n╰──╯")
    'Missing: RUN'
    """
    text = " ".join(line.strip("│ ") for line in box.splitlines() if line.startswith("│"))
    sections = (" ".join(section.split()) for section in re.split("─+", text))
    return "; ".join(part for part in sections if part and "helptext" not in part) or " ".join(box.split())


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {kind.__doc__}" for name, kind in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ctrlformer COMMAND [OPTIONS]",
            "",
            "Trains one agent that learns task after task from pixels.",
            "",
            "commands:",
            *lines,
            "",
            "ctrlformer COMMAND --help shows a command's options.",
        ]
    )


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


def _field(config: Config, name: str) -> object:
    """A setting by its dotted name."""
    section, _, field = name.partition(".")
    value: object = getattr(getattr(config, section), field) if field else getattr(config, section)
    return value
