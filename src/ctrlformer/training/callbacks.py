"""The one way in which a training tells the outside what happens: console, loggers and report are callbacks.

>>> class Scores(Callback):
...     def on_evaluation(self, row: Row, total_frames: int) -> None:
...         print(f"{row['task']} scores {row['mean']:.0f} at frame {row['frames']}")
>>> CallbackList([Scores()]).on_evaluation({"task": "toy/reach", "mean": 7.2, "frames": 100}, total_frames=500)
toy/reach scores 7 at frame 100
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ctrlformer.errors import ConfigError
from ctrlformer.storage.run_folder import Row


class StopTraining(Exception):
    """Raise it in a callback to end the training: a checkpoint is saved, and `resume` continues from there."""


class StageInfo(NamedTuple):
    """The stage under way."""

    number: int
    tasks: tuple[str, ...]
    budget: int
    """Frames of all its tasks together."""
    frames: int
    """Frames that are done, of all its tasks together."""


class StepInfo(NamedTuple):
    """A step that was just taken."""

    task: str
    stage: StageInfo
    total_frames: int
    """Of every stage so far."""
    episode_return: float | None
    """With an episode's last step."""


class Callback:
    """Base class of callbacks: every method does nothing, override those that you need.

    They are called in the thread that trains, between two steps. `row` is what was written to the log, its frames are
    those of the task; `total_frames` counts those of all stages. `StopTraining` ends the training cleanly; any other
    exception ends it as an error, and the last checkpoint stays.
    """

    def on_stage_start(self, stage: StageInfo) -> None:
        """A stage begins, or is resumed."""

    def on_step(self, step: StepInfo) -> None:
        """The agent has taken a step."""

    def on_log(self, row: Row, total_frames: int) -> None:
        """A row was added to metrics.jsonl."""

    def on_evaluation_episode(self, done: int, episodes: int) -> None:
        """So many episodes of an evaluation are done; 0 when it begins."""

    def on_evaluation(self, row: Row, total_frames: int) -> None:
        """A row was added to evals.jsonl: an evaluation of the task being learnt, a retest or a probe."""

    def on_stage_end(self, stage: StageInfo) -> None:
        """A stage has used up its frames, and its last checkpoint is saved."""

    def on_message(self, text: str) -> None:
        """A warning or a note for the user."""

    def on_stop(self, finished: bool) -> None:
        """The training is over; unless `finished`, it was interrupted or has failed. Always the last call."""


class CallbackList(Callback):
    """Several callbacks as one; each of them hears of everything, also when one before it stops the training."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        self.stop_asked = False
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks: {callback!r:.80} is no ctrlformer.Callback: make it a subclass")

    def on_stage_start(self, stage: StageInfo) -> None:
        self._each(lambda callback: callback.on_stage_start(stage))

    def on_step(self, step: StepInfo) -> None:
        self._each(lambda callback: callback.on_step(step))

    def on_log(self, row: Row, total_frames: int) -> None:
        self._each(lambda callback: callback.on_log(row, total_frames))

    def on_evaluation_episode(self, done: int, episodes: int) -> None:
        self._each(lambda callback: callback.on_evaluation_episode(done, episodes))

    def on_evaluation(self, row: Row, total_frames: int) -> None:
        self._each(lambda callback: callback.on_evaluation(row, total_frames))

    def on_stage_end(self, stage: StageInfo) -> None:
        self._each(lambda callback: callback.on_stage_end(stage))

    def on_message(self, text: str) -> None:
        self._each(lambda callback: callback.on_message(text))

    def on_stop(self, finished: bool) -> None:
        self._each(lambda callback: callback.on_stop(finished))

    def _each(self, tell: Callable[[Callback], None]) -> None:
        for callback in self._callbacks:
            try:
                tell(callback)
            except StopTraining:
                self.stop_asked = True
