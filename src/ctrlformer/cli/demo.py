"""`ctrlformer demo`: learn two tasks one after the other in minutes, and retest the first."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ctrlformer.analysis.metrics import RunScores, final_score, read_run, retest_change
from ctrlformer.config import Config, TransferConfig
from ctrlformer.config.presets import preset
from ctrlformer.report.page import REPORT
from ctrlformer.training import launch
from ctrlformer.training.console import console_progress

TASKS = ("cartpole_swingup", "cartpole_balance")


def demo_config() -> Config:
    """The compact preset at a small budget; results/demo took 10 minutes on two cores."""
    compact = preset("compact")
    settings = dataclasses.replace(
        compact.training, frames=12_000, seed_steps=500, eval_every_frames=4_000, eval_episodes=3, final_episodes=3
    )
    # So short a stage is all beginning: it keeps one learning rate.
    agent = dataclasses.replace(compact.agent, late_learning_rate=None)
    transfer = TransferConfig(heads="copy", protect="rehearse")
    return dataclasses.replace(compact, tasks=TASKS, agent=agent, transfer=transfer, training=settings)


def main(folder: Path | None, exit_within: float | None = None) -> None:
    """Train, then print the scores."""
    config = demo_config()
    with console_progress() as progress:
        progress.on_message(
            f"training {' and then '.join(TASKS)} from pixels, {config.training.frames:,} frames each:"
            " about ten minutes on two cores"
        )
        run = launch.start(config, folder, callbacks=[progress], exit_within=exit_within)
    for line in summary_lines(read_run(run.path)):
        print(line)
    print(f"run:    {run.path}")
    print(f"report: {run.path / REPORT}")


def summary_lines(run: RunScores) -> list[str]:
    """A line per task: before its stage, after it, and after the later ones.

    >>> rows = [("learn", 0, 0, 90.0), ("final", 0, 12, 200.0), ("retest", 1, 12, 190.0)]
    >>> names = ("kind", "stage", "frames", "mean")
    >>> print(*summary_lines(RunScores.of("run", 1, (dict(zip(names, row), task="a") for row in rows))))
    a: 90 of 1000 at first, 200 trained, 190 after learning the other task
    """
    lines = []
    for task in run.stages:
        first, trained, retested = run.of_task(task, "learn")[0].score, final_score(run, task), retest_change(run, task)
        line = f"{task}: {first:.0f} of 1000 at first, {trained:.0f} trained"
        lines.append(line + (f", {retested.after:.0f} after learning the other task" if retested else ""))
    return lines
