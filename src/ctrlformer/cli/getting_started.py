"""Commands before the first training: `tasks`, `presets`, `doctor` and `demo`, each imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrlformer.config import Config, differences, presets
from ctrlformer.training.signals import EXIT_WITHIN


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
    """Check this machine, and print what to fix."""

    def __call__(self) -> int:
        from ctrlformer.cli.doctor import run_doctor

        return run_doctor(print)


@dataclass(frozen=True)
class Demo:
    """Learn two tasks one after the other in about ten minutes, and show the scores."""

    run: Path | None = None
    """Run folder; none makes a new one in runs/."""

    def __call__(self) -> None:
        from ctrlformer.cli.demo import main

        main(self.run, EXIT_WITHIN)


def _field(config: Config, name: str) -> object:
    """A setting by its dotted name."""
    section, _, field = name.partition(".")
    value: object = getattr(getattr(config, section), field) if field else getattr(config, section)
    return value
