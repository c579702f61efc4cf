"""What checkpoints cost: the time of a save beside the time of training between two of them."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from tally import HowMany, Tally

from ctrlformer.config.presets import make_config, preset
from ctrlformer.training import launch
from ctrlformer.training.trainer import Trainer

LARGEST_SHARE = 0.01
CARTPOLE_REPEAT = 8  # frames of a step there, the most of all tasks: the fewest updates between two checkpoints
REPEAT = 10  # of the toy task here, whose episodes it divides


@pytest.mark.fault("cost")
def test_a_save_takes_little_beside_the_training_between_two(
    tally: Tally, how_many: HowMany, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compact preset on a toy task, for as many steps as cartpole has between two checkpoints. They are random, to
    get there soon, so the save has as much to write as usual; the updates after it are timed. Drawing cartpole would
    only make the share smaller."""
    usual = preset("compact").training.checkpoint_every_frames // CARTPOLE_REPEAT
    steps = how_many(20, usual)
    settings = {
        "training.frames": (steps + how_many(3, 10)) * REPEAT,
        "training.checkpoint_every_frames": steps * REPEAT,
        "training.seed_steps": steps,
        "training.eval_episodes": 1,
        "training.final_episodes": 1,
        "training.tensorboard": False,
        "env.action_repeat": REPEAT,
    }
    saves, updates = timed(Trainer, "_save", monkeypatch), timed(Trainer, "_update", monkeypatch)
    launch.start(make_config(["toy/reach"], "compact", None, 1, settings), tmp_path / "run")
    save, update = saves[1], statistics.median(updates)  # the first save is of an empty run, the last of a finished one
    share = save / (usual * update)
    tally.figures |= {
        "seconds of a save": round(save, 3),
        "seconds of an update": round(update, 3),
        "share of training time": f"{100 * share:.2f} %",
    }
    with tally.case("share"):
        assert len(saves) == 3
        assert save > 0
        if how_many(0, 1):  # timing never decides a quick test
            assert share <= LARGEST_SHARE


def timed(owner: type, name: str, patch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each call of a method takes."""
    seconds: list[float] = []
    real = getattr(owner, name)

    def measured(*words: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*words)
        finally:
            seconds.append(time.perf_counter() - started)

    patch.setattr(owner, name, measured)
    return seconds
