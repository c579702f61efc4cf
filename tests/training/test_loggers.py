"""TensorBoard files of a real run, and a stand-in for Weights & Biases, which needs an account."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from small_runs import SignalAt, small_config, start

from ctrlformer.training import launch
from ctrlformer.training.loggers import FaultTolerantLogger, open_loggers

ROW = {"stage": 0, "task": "a", "frames": 20, "steps": 10, "updates": 5, "q": 1.5, "seconds": 0.1, "minutes": 2.0}


def test_tensorboard_shows_each_frame_once_also_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = small_config(training__tensorboard=True)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config, SignalAt(step=16))
    run = launch.resume(tmp_path / "run")
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
        (logger,) = open_loggers(tmp_path, config, 0, pytest.fail)
        logger.on_log(ROW, 20)
        logger.on_stop(finished=True)
    assert calls[0]["id"] == calls[1]["id"]
    assert calls[0]["resume"] == "allow"
    assert rows[:2] == [{"a/training/q": 1.5, "frames": 20}, {"finished": 1.0}]


class Broken:
    def __init__(self, fails_in: str) -> None:
        self._fails_in = fails_in
        self.logged = 0

    def log(self, values: Any, frames: int) -> None:
        self._may_fail("log")
        self.logged += 1

    def close(self) -> None:
        self._may_fail("close")

    def _may_fail(self, where: str) -> None:
        if where == self._fails_in:
            raise ConnectionError("no route\nto host")


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_a_logger_that_fails_is_named_once_and_given_up(where: str) -> None:
    def begin() -> Broken:
        if where == "start":
            raise ConnectionError("no route\nto host")
        return Broken(where)

    said: list[str] = []
    logger = FaultTolerantLogger("Weights & Biases", begin, said.append)
    for _ in range(3):
        logger.on_log(ROW, 20)
    logger.on_stop(finished=True)
    logger.on_stop(finished=True)
    assert len(said) == 1
    assert "Weights & Biases failed (ConnectionError: no route to host)" in said[0]


def test_a_logger_that_works_gets_everything() -> None:
    broken = Broken("never")
    logger = FaultTolerantLogger("TensorBoard", lambda: broken, pytest.fail)
    logger.on_log(ROW, 20)
    logger.on_evaluation({"task": "a", "kind": "retest", "mean": 1.0, "std": 0.5}, 20)
    logger.on_stop(finished=True)
    assert broken.logged == 2
