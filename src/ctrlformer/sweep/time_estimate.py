"""How long runs will take: a few steps and updates of each method, really made and timed."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ctrlformer.config.presets import overridden
from ctrlformer.errors import CtrlFormerError
from ctrlformer.paper.plan import PlannedRun
from ctrlformer.training import launch
from ctrlformer.training.callbacks import Callback, StepInfo, StopTraining

RANDOM_STEPS = 20  # before learning begins: a batch needs something to be drawn from
WARMING_STEPS = 2  # with updates that are not counted: they compile and allocate
TIMED_STEPS = 5
ENOUGH_SECONDS = 30.0  # after which even one timed step will do
SETTINGS = {
    "training.seed_steps": RANDOM_STEPS,
    "training.replay_capacity": 1000,
    "training.eval_episodes": 1,
    "training.tensorboard": False,
}


class Speed(NamedTuple):
    """Seconds of one method on this machine."""

    step: float
    """A step with its updates."""
    episode: float
    """An episode of an evaluation."""
    repeat: int
    """Frames per step of the task it was measured on."""


class _Stopwatch(Callback):
    """Times the first evaluation and the steps that learn, then ends the training."""

    def __init__(self) -> None:
        self._started = self._evaluating = self._first = time.monotonic()
        self._steps = 0
        self.episode = self.step_seconds = 0.0

    def on_evaluation_episode(self, done: int, episodes: int) -> None:
        now = time.monotonic()
        if done == 0:
            self._evaluating = now
        else:
            self.episode = (now - self._evaluating) / done

    def on_step(self, step: StepInfo) -> None:
        now = time.monotonic()
        self._steps += 1
        timed = self._steps - RANDOM_STEPS - WARMING_STEPS
        if timed == 0:
            self._first = now
        elif timed > 0 and (timed == TIMED_STEPS or now - self._started > ENOUGH_SECONDS):
            self.step_seconds = (now - self._first) / timed
            raise StopTraining


def measure_speeds(runs: Iterable[PlannedRun], say: Callable[[str], None]) -> dict[str, Speed]:
    """The speed of every method among the runs, each on the first task that it learns; `say` tells which cannot."""
    first: dict[str, PlannedRun] = {}
    for run in runs:
        first.setdefault(run.method, run)
    speeds = {}
    for method, run in first.items():
        try:
            speeds[method] = _measure(run)
        except CtrlFormerError as error:  # the run itself will fail as well, and then it is reported
            say(f"{method} could not be timed: {error}")
    return speeds


def _measure(run: PlannedRun) -> Speed:
    task = run.config.tasks[0]
    repeat = run.repeat(task)
    frames = (RANDOM_STEPS + WARMING_STEPS + TIMED_STEPS + 1) * repeat
    config = dataclasses.replace(run.config, tasks=(task,), together=False, added=())
    config = overridden(config, SETTINGS | {"training.frames": frames, "training.eval_every_frames": frames})
    watch = _Stopwatch()
    with tempfile.TemporaryDirectory(prefix="ctrlformer-") as folder:
        launch.start(config, Path(folder, "calibration"), callbacks=[watch])
    return Speed(watch.step_seconds, watch.episode, repeat)


def hours(runs: Iterable[PlannedRun], speeds: Mapping[str, Speed]) -> float:
    """Of all timed runs one after the other. An episode of another task is taken to have as many frames."""
    return sum(_seconds(run, speeds[run.method]) for run in runs if run.method in speeds) / 3600


def _seconds(run: PlannedRun, speed: Speed) -> float:
    training = run.config.training
    learning, earlier = run.stage.tasks, run.config.all_tasks[: -len(run.stage.tasks)]
    evaluations = run.stage.frames // training.eval_every_frames * training.eval_episodes + training.final_episodes
    episodes = [evaluations] * len(learning) + [training.final_episodes] * len(earlier)
    steps_ratio = [speed.repeat / run.repeat(task) for task in (*learning, *earlier)]
    playing = sum(count * ratio for count, ratio in zip(episodes, steps_ratio, strict=True))
    return run.steps * speed.step + playing * speed.episode
