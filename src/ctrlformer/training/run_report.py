"""The callback that keeps a run's report.html and curve.png up to date."""

from __future__ import annotations

import gc

from ctrlformer.errors import RunError
from ctrlformer.report.learning_curve import learning_curve
from ctrlformer.report.page import REPORT, write_report
from ctrlformer.storage.files import reason, write_atomic
from ctrlformer.storage.run_folder import Row, RunFolder
from ctrlformer.training.callbacks import Callback, StageInfo

CURVE = "curve.png"


class RunReport(Callback):
    """Writes the page anew after every evaluation, and the curve, which takes longer to draw, at a stage's end."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def on_evaluation(self, row: Row, total_frames: int) -> None:
        write_report([self._run.path], self._run.path / REPORT)  # validates the rows, and names one that is invalid

    def on_stage_end(self, stage: StageInfo) -> None:
        path = self._run.path / CURVE
        try:
            write_atomic(path, learning_curve(self._run.path.name, self._run.read_evals()))
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}; the checkpoints are intact") from error
        gc.collect()  # matplotlib's figures are reference cycles of some MB, which Python would find only after many
