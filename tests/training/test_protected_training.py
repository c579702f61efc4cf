"""Trainings with every protection of weights: a resume changes nothing, and PackNet keeps old tasks to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import SignalAt, assert_same, outcome, small_config, start

from ctrlformer.training import launch

PAIR = ("toy/reach", "toy/slide")
SMALL: dict[str, Any] = {
    "training__frames": 40,
    "training__eval_every_frames": 1000,
    "env__image_size": 12,
    "encoder__task_attention": "causal",
    "transfer__encoder_lr_scale": 1.0,
    "transfer__kept_observations": 20,
}


@pytest.mark.parametrize("protect", ["l2", "ewc", "packnet"])
def test_resume_is_exact_and_packnet_forgets_nothing(protect: str, tmp_path: Path) -> None:
    config = small_config(*PAIR, transfer__protect=protect, **SMALL)
    whole = start(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config, SignalAt(step=13, stage=PAIR[1]))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(whole))
    final, retest = (row["returns"] for row in whole.read_evals() if row["task"] == PAIR[0] and row["kind"] != "learn")
    drift = whole.read_metrics()[-1][f"drift/{PAIR[0]}"]
    if protect == "packnet":
        assert (final, drift) == (retest, 0.0)
    else:
        assert whole.read_metrics()[-1]["protection_loss"] > 0
        assert drift > 0
