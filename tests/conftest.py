"""What every test shares: one thread per process, no test that needs the network, and the option for faults."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Before numpy or torch is imported: the tests run in several processes beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
# A shell's background jobs, and what they start, ignore it: then tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults-out",
        type=lambda name: Path(name).absolute(),  # tests go to other folders
        metavar="FILE",
        help="try every case of tests/faults, not only a few, and add the counts to this file",
    )
