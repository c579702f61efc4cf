"""Runs one after the other in this very process: nothing to start, and a debugger sees everything."""

from __future__ import annotations

import traceback

from ctrlformer.errors import CtrlFormerError
from ctrlformer.sweep.jobs import Job
from ctrlformer.sweep.schedule import Ended
from ctrlformer.sweep.worker import carry_out
from ctrlformer.training.console import console_progress
from ctrlformer.training.signals import EXIT_WITHIN


class ThisProcess:
    """An executor that has trained a run when `submit` returns; signals go up from there, after a checkpoint."""

    def __init__(self) -> None:
        self._ended: list[Ended] = []

    def has_room(self) -> bool:
        return not self._ended

    def submit(self, job: Job) -> None:
        self._ended.append(_carried_out(job))

    def wait(self, seconds: float) -> list[Ended]:
        del seconds  # nothing is under way
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """The one training has stopped before anyone can call this."""


def _carried_out(job: Job) -> Ended:
    try:
        with console_progress() as progress:
            carry_out(job, [progress], EXIT_WITHIN)
    except (CtrlFormerError, OSError) as error:
        return Ended(job.name, "failed", str(error))
    except Exception as error:  # noqa: BLE001 (one run's mistake, whatever it is, does not end the others)
        traceback.print_exc()
        return Ended(job.name, "failed", f"{type(error).__name__}: {error}")
    return Ended(job.name, "finished")
