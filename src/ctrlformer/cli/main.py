"""The entry point of the command line: parses, calls, and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import io
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import tyro

from ctrlformer.cli.arguments import Command
from ctrlformer.cli.commands import COMMANDS
from ctrlformer.cli.flags import spelled_out, spellings
from ctrlformer.cli.train import Add, Train
from ctrlformer.errors import ConfigError, CtrlFormerError

LONGEST_LINE = 1000  # of a message, in which a name of any length may stand


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 after a clear line on stderr, or 130/143 after a signal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    before = signal.signal(signal.SIGTERM, _terminate)  # ending early runs every clean-up, and is 143 everywhere
    show_warning, warnings.showwarning = warnings.showwarning, _show_warning  # type: ignore[assignment]
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_overview())
            return 0
        if arguments[0] in ("-V", "--version"):
            print(f"ctrlformer {importlib.metadata.version('ctrlformer')}")
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
    """Import what the user names on the command line; a run's own files can never ask for it."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"--import {module}: {error}") from error


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"warning: {_plain_line(str(message))}", file=sys.stderr)


def _plain_line(text: str) -> str:
    """One line without control characters: a name in it may come from an untrusted file.

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
            command: Command = tyro.cli(kind, args=rest, prog=program, default=default, registry=spellings)
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
    line = "; ".join(part for part in sections if part and "helptext" not in part) or " ".join(box.split())
    return re.sub("no type matching .*<class 'int'>: ", "", line)  # what may be left out says that it may, too


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
            "ctrlformer COMMAND --help shows a command's options; ctrlformer --version the version.",
        ]
    )
