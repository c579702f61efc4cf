"""How soon the commands of a fresh process get going."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import Effort, Sample, SpeedComparison
from ctrlformer.config.presets import preset
from ctrlformer.errors import RunError
from ctrlformer.storage.files import parse_json, read_bounded
from ctrlformer.storage.run_folder import LOG_BYTES, METRICS

HELP_LIMIT, UPDATE_LIMIT = 0.5, 10.0  # seconds
GIVE_UP = 180.0
RANDOM_STEPS = 10  # the start is measured, not the play before learning
LOOK_EVERY = 0.05
COMMAND = [sys.executable, "-m", "ctrlformer"]


def help_text(effort: Effort) -> SpeedComparison:
    seconds = []
    for _ in range(2 * effort.repeats):
        started = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    note = "python -m ctrlformer --help in a fresh process; the reference is the limit"
    return SpeedComparison(Sample.of(seconds), Sample.of([HELP_LIMIT]), "s", note)


def first_update(_: Effort) -> SpeedComparison:
    words = ["train", "cartpole_swingup", "--preset", "compact", "--training.log-every-steps", "1"]
    words += ["--training.seed-steps", str(RANDOM_STEPS), "--training.eval-episodes", "1"]
    first_step, seconds = seconds_to_first_update(words)
    usual = preset("compact").training
    note = (
        "from starting the process of `ctrlformer train cartpole_swingup --preset compact` to the row of metrics.jsonl"
        f" after its first update, with {RANDOM_STEPS} random steps instead of {usual.seed_steps} and 1 episode instead"
        f" of {usual.eval_episodes} in the first evaluation; the first random step was done after {first_step:.1f} s;"
        " the reference is the limit"
    )
    return SpeedComparison(Sample.of([seconds]), Sample.of([UPDATE_LIMIT]), "s", note)


def seconds_to_first_update(words: list[str]) -> tuple[float, float]:
    """Start the command, wait for its first step and its first update, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        started = time.perf_counter()
        with subprocess.Popen(
            [*COMMAND, *words, "--run", str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                first_step = _seconds_until(0, run, child, started)
                return first_step, _seconds_until(1, run, child, started)
            finally:
                child.terminate()  # saves a checkpoint and leaves
                child.communicate()


def _seconds_until(updates: int, run: Path, child: subprocess.Popen[str], started: float) -> float:
    """Seconds from `started` to a row of the run's metrics after so many updates."""
    while updates_logged(run) < updates:
        if child.poll() is not None:
            complaint = child.stderr.read().strip().splitlines() if child.stderr else []
            why = complaint[-1] if complaint else "no message"
            raise RunError(f"the training ended before its first update: {why}")
        if time.perf_counter() - started > GIVE_UP:
            raise RunError(f"no update within {GIVE_UP:.0f} s: look at `ctrlformer train` itself")
        time.sleep(LOOK_EVERY)
    return time.perf_counter() - started


def updates_logged(run: Path) -> int:
    """Updates before the newest row of a run's metrics; -1 while there is none."""
    try:
        rows = read_bounded(run / METRICS, LOG_BYTES).splitlines()
    except FileNotFoundError:
        return -1
    return int(parse_json(rows[-1])["updates"]) if rows else -1
