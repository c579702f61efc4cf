"""`python -m benchmarks`: measure this machine's speed, ours beside the paper's listings and other libraries."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.arguments import run


@dataclass(frozen=True)
class Bench:
    """Measure this machine's speed side by side: ours beside the paper's listings and other libraries."""

    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Fewer repeats and smaller batches."""
    rows: str | None = None
    """Only these rows, separated by commas, such as update_compact,env_step."""
    json: Path | None = None
    """Also write the table to this file."""

    def __call__(self) -> None:
        from benchmarks.command import main

        main(self.rows.split(",") if self.rows else [], self.quick, self.json)


if __name__ == "__main__":
    sys.exit(run(Bench, "python -m benchmarks"))
