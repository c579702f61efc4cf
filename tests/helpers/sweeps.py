"""Sweeps of tiny toy trainings as real commands, and what a test compares of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctrlformer.paper.plan import RUNS

SECONDS = 900.0  # on a busy machine


def words(out: Path, *more: str) -> list[str]:
    """A grid of two seeds by two tasks, and the transfer between them: six runs."""
    grid = ["manipulation", "--scale", "smoke", "--methods", "ctrlformer", "--seeds", "2", "--frames", "160"]
    return ["reproduce", *grid, "--skip-calibration", "--out", str(out), *more]


@contextmanager
def sweeping(out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "ctrlformer", *words(out, *more)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def said_at_the_end(process: subprocess.Popen[str], code: int) -> str:
    """All that the command printed, if it ended with that exit code."""
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, said
    return said


def evals(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Every run's evaluations, without their times."""
    return {
        path.parent.name: [
            {name: value for name, value in json.loads(line).items() if name != "minutes"}
            for line in path.read_text().splitlines()
        ]
        for path in sorted((out / RUNS).glob("*/evals.jsonl"))
    }


def learning(out: Path, since: float = 0.0) -> list[str]:
    """Runs that are in the middle of learning: some steps are done, one after `since`; the last evaluation is not."""
    return [
        path.parent.name
        for path in (out / RUNS).glob("*/metrics.jsonl")
        if path.stat().st_mtime > since
        and path.read_text().count("\n") >= 2
        and '"final"' not in (path.parent / "evals.jsonl").read_text()
    ]


def until(happened: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
