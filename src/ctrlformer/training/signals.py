"""SIGINT and SIGTERM ask a training to stop; it saves first.

The loop looks at `asked` between two updates. A second signal ends the process at once, and so does the end
of `exit_within`: an update can last longer than a cluster or a person waits. Nothing is lost by that, because
a resume from the last checkpoint repeats exactly what came after it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_WITHIN = 7.0  # seconds from a signal to the end of the update under way; saving comes after


class StopRequest:
    """Catches the signals inside a `with`, in the main thread (elsewhere Python lets nobody catch them)."""

    def __init__(self, exit_within: float | None = None) -> None:
        self._exit_within = exit_within
        self._signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    def saving(self) -> None:
        """The update is over and a checkpoint is being written: let it finish."""
        if self._timer:
            self._timer.cancel()

    def leave(self) -> NoReturn:
        """End the program the way its signal asks: exit code 130 or 143."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        assert self._signal is not None
        raise SystemExit(128 + self._signal)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self.saving()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            if self._exit_within is not None:
                self._exit_now(number)
            self.leave()
        self._signal = number
        if self._exit_within is not None:
            self._timer = threading.Timer(self._exit_within, self._exit_now, [number])
            self._timer.daemon = True
            self._timer.start()

    def _exit_now(self, number: int) -> NoReturn:
        os.write(sys.__stderr__.fileno(), b"stopped at once: resume continues from the last checkpoint\n")  # type: ignore[union-attr]
        os._exit(128 + number)
