"""`ctrlformer demo`: a few minutes from an untrained agent to one that visibly learnt something."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ctrlformer import launch
from ctrlformer.config import Config
from ctrlformer.presets import preset
from ctrlformer.progress import watching
from ctrlformer.training import CURVE

TASK = "cartpole_swingup"


def demo_config() -> Config:
    """The compact preset at a budget of about five minutes on two cores."""
    compact = preset("compact")
    settings = dataclasses.replace(
        compact.training, frames=16_000, seed_steps=500, eval_every_frames=4_000, eval_episodes=3, final_episodes=3
    )
    # So short a stage is all beginning: the late learning rate would only slow it.
    agent = dataclasses.replace(compact.agent, late_learning_rate=None)
    return dataclasses.replace(compact, tasks=(TASK,), agent=agent, training=settings)


def main(folder: Path | None, exit_within: float | None = None) -> None:
    """Train, then say what came of it."""
    config = demo_config()
    with watching() as progress:
        progress.say(
            f"training {TASK} from pixels for {config.training.frames:,} frames, about five minutes on two cores"
        )
        run = launch.start(config, folder or launch.default_folder(config), progress, exit_within)
    evaluations = run.read_evals()
    print(f"untrained: {evaluations[0]['mean']:.0f} of 1000")
    print(f"trained:   {evaluations[-1]['mean']:.0f} of 1000")
    print(f"run:       {run.path}")
    print(f"curve:     {run.path / CURVE}")
