"""Parse and run a benchmark's command line; an error is one line and exit code 2, as in `ctrlformer`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import tyro

from ctrlformer.errors import CtrlFormerError


def run(command: Callable[..., Callable[[], None]], program: str, arguments: Sequence[str] | None = None) -> int:
    """Run `command`, a dataclass whose fields are the flags, and return the exit code."""
    try:
        tyro.cli(command, prog=program, args=arguments)()
    except (CtrlFormerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
