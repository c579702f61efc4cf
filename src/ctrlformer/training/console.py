"""The callback that shows a training on the console: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ctrlformer.storage.run_folder import Row
from ctrlformer.training.callbacks import Callback, StageInfo, StepInfo

PLAIN_SECONDS = 10.0  # between two plain lines: a log file stays readable
SPEED_SECONDS = 60.0  # frames per second are measured over this long


@contextmanager
def console_progress(quiet: bool = False) -> Iterator[Callback]:
    """Yield a callback that shows the progress of trainings on the console, or one that shows nothing."""
    progress = Callback() if quiet else ConsoleProgress()
    try:
        yield progress
    finally:
        if isinstance(progress, ConsoleProgress):
            progress.close()


class ConsoleProgress(Callback):
    """One status line: redrawn in place on a terminal, printed now and then elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._printed = 0.0
        self._stage = StageInfo(0, (), 1, 0)
        self._last_return: float | None = None
        self._last_evaluation: float | None = None
        self._evaluating = ""
        self._times: deque[tuple[float, int]] = deque()

    def on_stage_start(self, stage: StageInfo) -> None:
        self._stage = stage
        self._last_return = self._last_evaluation = None
        self._times.clear()

    def on_step(self, step: StepInfo) -> None:
        self._stage, self._evaluating = step.stage, ""
        if step.episode_return is not None:
            self._last_return = step.episode_return
        now = time.monotonic()
        self._times.append((now, step.stage.frames))
        while now - self._times[0][0] > SPEED_SECONDS:
            self._times.popleft()
        self._show()

    def on_evaluation_episode(self, done: int, episodes: int) -> None:
        self._evaluating = f"evaluating {done}/{episodes}"
        if self._live:
            self._show()

    def on_evaluation(self, row: Row, total_frames: int) -> None:
        self._evaluating = ""
        self._times.clear()  # an evaluation's time is not training speed
        score = f"{row['mean']:.1f} ± {row['std']:.1f} over {len(row['returns'])} episodes"
        if row["kind"] == "probe":
            self.on_message(f"probe of {row['source']} in {row['task']}: {score}, {row['frames']:,} frames in all")
            return
        what = f"retest of {row['task']}"
        if row["kind"] != "retest":
            what, self._last_evaluation = row["task"], row["mean"]
        self.on_message(f"{what}: {score} at frame {row['frames']:,}, minute {row['minutes']:.1f}")

    def on_message(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def status(self) -> str:
        """The status line.

        >>> shown = ConsoleProgress(Console(force_terminal=False))
        >>> shown.on_stage_start(StageInfo(number=0, tasks=("toy/reach",), budget=1000, frames=0))
        >>> shown.status()
        'toy/reach  0/1,000 frames (0 %)'
        """
        tasks, frames, budget = " + ".join(self._stage.tasks), self._stage.frames, self._stage.budget
        parts = [f"{tasks}  {frames:,}/{budget:,} frames ({100 * frames // budget} %)"]
        speed = self._speed()
        if speed:
            left = max(0, budget - frames) / speed
            parts.append(f"{speed:.1f} frames/s, ETA {_clock(left)}")
        if self._last_return is not None:
            parts.append(f"return {self._last_return:.1f}")
        if self._last_evaluation is not None:
            parts.append(f"evaluation {self._last_evaluation:.1f}")
        if self._evaluating:
            parts.append(self._evaluating)
        return "  ".join(parts)

    def _show(self) -> None:
        now = time.monotonic()
        if self._live:
            self._live.update(Text(self.status(), no_wrap=True, overflow="ellipsis"))
        elif now - self._printed > PLAIN_SECONDS:
            self._printed = now
            self.on_message(self.status())

    def _speed(self) -> float:
        if len(self._times) < 2:
            return 0.0
        (start, first), (end, last) = self._times[0], self._times[-1]
        return (last - first) / (end - start) if end > start else 0.0


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _clock(3725)
    '1:02:05'
    """
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
