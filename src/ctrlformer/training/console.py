"""What a training tells the person watching: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

PLAIN_SECONDS = 10.0  # between two plain lines: a log file stays readable
SPEED_SECONDS = 60.0  # frames per second are measured over this long


class Progress:
    """What a training calls; here nothing comes of it."""

    def begin_stage(self, task: str, frames: int, budget: int) -> None:
        """A stage begins, or goes on, at `frames` of `budget`."""

    def step(self, frames: int, episode_return: float | None) -> None:
        """A step is done; the return comes with an episode's last."""

    def evaluating(self, episode: int, episodes: int) -> None:
        """So many episodes of an evaluation are played."""

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """A row was added to evals.jsonl."""

    def say(self, text: str) -> None:
        """A message."""

    def close(self) -> None:
        """The training is over."""


@contextmanager
def watching(quiet: bool = False) -> Iterator[Progress]:
    """Progress on the console while the `with` lasts, or none."""
    progress = Progress() if quiet else OnConsole()
    try:
        yield progress
    finally:
        progress.close()


class OnConsole(Progress):
    """One status line: redrawn in place on a terminal, printed now and then elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._printed = 0.0
        self._task, self._budget, self._frames = "", 1, 0
        self._last_return: float | None = None
        self._last_evaluation: float | None = None
        self._evaluating = ""
        self._times: deque[tuple[float, int]] = deque()

    def begin_stage(self, task: str, frames: int, budget: int) -> None:
        self._task, self._frames, self._budget = task, frames, budget
        self._last_return = self._last_evaluation = None
        self._times.clear()

    def step(self, frames: int, episode_return: float | None) -> None:
        self._frames, self._evaluating = frames, ""
        if episode_return is not None:
            self._last_return = episode_return
        now = time.monotonic()
        self._times.append((now, frames))
        while now - self._times[0][0] > SPEED_SECONDS:
            self._times.popleft()
        self._show()

    def evaluating(self, episode: int, episodes: int) -> None:
        self._evaluating = f"evaluating {episode}/{episodes}"
        if self._live:
            self._show()

    def evaluated(self, row: Mapping[str, Any]) -> None:
        self._evaluating = ""
        self._times.clear()  # an evaluation's time is not training speed
        what = f"retest of {row['task']}"
        if row["kind"] != "retest":
            what, self._last_evaluation = row["task"], row["mean"]
        self.say(
            f"{what}: {row['mean']:.1f} ± {row['std']:.1f} over {len(row['returns'])} episodes"
            f" at frame {row['frames']:,}, minute {row['minutes']:.1f}"
        )

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def status(self) -> str:
        """The status line.

        >>> shown = OnConsole(Console(force_terminal=False))
        >>> shown.begin_stage("toy/reach", 0, 1000)
        >>> shown.status()
        'toy/reach  0/1,000 frames (0 %)'
        """
        parts = [f"{self._task}  {self._frames:,}/{self._budget:,} frames ({100 * self._frames // self._budget} %)"]
        speed = self._speed()
        if speed:
            left = max(0, self._budget - self._frames) / speed
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
            self.say(self.status())

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
