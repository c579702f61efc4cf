"""What commands have in common: the run folder as an argument, modules to import, the call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol

import tyro

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Modules = Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE [MODULE ...]")]


class Command(Protocol):
    """One subcommand: its fields are the flags, calling it does the work and may give an exit code."""

    def __call__(self) -> int | None: ...
