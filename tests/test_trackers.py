"""TensorBoard files of a real run, and a stand-in for Weights & Biases, which needs an account."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from small_runs import SignalAt, small_config, start

from ctrlformer import launch
from ctrlformer.progress import Progress
from ctrlformer.trackers import open_trackers


def test_tensorboard_shows_each_frame_once_also_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = small_config(training__tensorboard=True)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config, SignalAt(step=16))
    run = launch.resume(tmp_path / "run", Progress())
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    losses = events.Scalars("toy/reach/training/critic_loss")
    assert [event.step for event in losses] == [row["frames"] for row in run.read_metrics() if "critic_loss" in row]
    scores = events.Scalars("toy/reach/evaluation/mean")
    assert [event.step for event in scores] == [row["frames"] for row in run.read_evals()]


def test_wandb_gets_every_figure_under_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    rows: list[dict[str, float]] = []
    session = types.SimpleNamespace(log=rows.append, finish=lambda: rows.append({"finished": 1.0}))

    def init(**settings: Any) -> types.SimpleNamespace:
        calls.append(settings)
        return session

    fake = types.ModuleType("wandb")
    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    config = small_config()
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, wandb=True))
    for _ in range(2):
        (tracker,) = open_trackers(tmp_path, config, 0)
        tracker.log({"a/training/q": 1.5}, 20)
        tracker.close()
    assert calls[0]["id"] == calls[1]["id"]
    assert calls[0]["resume"] == "allow"
    assert rows[:2] == [{"a/training/q": 1.5, "frames": 20}, {"finished": 1.0}]
