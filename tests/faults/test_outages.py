"""A simulator, a renderer or a tracker that fails in the middle of a training."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_runs import broken_config, evenly, go_on, start
from small_runs import assert_same, outcome
from tally import HowMany, Tally

import ctrlformer.training.trainer
from ctrlformer.cli.main import main
from ctrlformer.config import Config
from ctrlformer.envs.toy import Toy
from ctrlformer.errors import RenderError, TaskError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import loggers
from ctrlformer.training.callbacks import Callback

pytestmark = [pytest.mark.fault("outage"), pytest.mark.usefixtures("quick_trainings")]


class Listener(Callback):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_message(self, text: str) -> None:
        self.said.append(text)


def failing(method: str, call: int) -> Callable[..., Any]:
    """A method of the toy tasks that fails at that call, counted over all environments, and at every later one."""
    real, calls = getattr(Toy, method), itertools.count()

    def fails(*words: Any) -> Any:
        if next(calls) >= call:
            raise RuntimeError("the display\nis gone")
        return real(*words)

    return fails


def calls_of(method: str, folder: Path) -> int:
    """How often a whole training calls it."""
    real, calls = getattr(Toy, method), itertools.count()

    def counted(*words: Any) -> Any:
        next(calls)
        return real(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, method, counted)
        start(folder)
    return next(calls)


@pytest.mark.parametrize(("method", "kind"), [("reset", TaskError), ("step", TaskError), ("pixels", RenderError)])
def test_a_simulator_that_fails_stops_with_one_line_and_resume_is_exact(
    method: str,
    kind: type[Exception],
    tally: Tally,
    how_many: HowMany,
    expected: dict[str, Any],
    tmp_path: Path,
) -> None:
    """While collecting, evaluating and retesting; before the first checkpoint (call 0) nothing is left behind."""
    total = calls_of(method, tmp_path / "counted")
    for call in evenly(range(total), how_many(2, 8)):
        with tally.case(f"{method}, call {call}"):
            folder = tmp_path / f"{call}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Toy, method, failing(method, call))
                with pytest.raises(kind) as failure:
                    start(folder)
            assert "\n" not in str(failure.value)
            assert "'toy/" in str(failure.value)
            assert "RuntimeError: the display is gone" in str(failure.value)
            if folder.exists():
                assert "last checkpoint is intact" in str(failure.value)
                checkpoint.load(folder / "checkpoints", warn=pytest.fail)
            assert_same(outcome(go_on(folder)), expected)


def test_before_a_failed_evaluation_stops_all_is_saved(tally: Tally, expected: dict[str, Any], tmp_path: Path) -> None:
    """The second evaluation comes at step 7, the scheduled checkpoint before it at step 6."""
    calls, evaluate = itertools.count(), ctrlformer.training.trainer.evaluate

    def fails(*words: Any, **named: Any) -> list[float]:
        if next(calls) == 1:
            raise TaskError("task 'toy/reach' failed")
        return evaluate(*words, **named)

    with tally.case("the second evaluation"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ctrlformer.training.trainer, "evaluate", fails)
            with pytest.raises(TaskError, match="last checkpoint is intact"):
                start(tmp_path / "run")
        assert checkpoint.load(tmp_path / "run" / "checkpoints").step == 7
        assert_same(outcome(go_on(tmp_path / "run")), expected)


def test_the_command_says_it_in_one_line_and_ends_with_2(
    tally: Tally, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    RunFolder.create(folder, broken_config())
    with tally.case("command"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "step", failing("step", 200))
        assert main(["resume", str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: task 'toy/reach' failed in step: RuntimeError: the display is gone (stopped in")
        assert error.count("\n") == 1


# Trackers


class Unreachable:
    """A tracker that fails in the method that it was told, from that call on."""

    def __init__(self, fails_in: str, call: int) -> None:
        self._fails_in, self._call, self._calls = fails_in, call, itertools.count()
        self._may_fail("start")

    def log(self, values: Any, frames: int) -> None:
        self._may_fail("log")

    def close(self) -> None:
        self._may_fail("close")

    def _may_fail(self, where: str) -> None:
        if where == self._fails_in and next(self._calls) >= self._call:
            raise ConnectionError("no route to host")


@pytest.mark.parametrize("name", ["TensorBoard", "WandB"])
def test_a_training_goes_on_without_a_tracker_that_fails(
    name: str, tally: Tally, how_many: HowMany, expected: dict[str, Any], tmp_path: Path
) -> None:
    config: Config = broken_config(training__tensorboard=name == "TensorBoard", training__wandb=name == "WandB")
    cases = [("start", 0), ("log", 0), ("log", 7), ("close", 0)]
    for where, call in evenly(cases, how_many(1, len(cases))):
        with tally.case(f"{name}, {where} {call}"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(loggers, name, lambda *_, where=where, call=call: Unreachable(where, call))
            patch.setattr(loggers, "_installed", lambda module: True)
            listener = Listener()
            run = start(tmp_path / f"{where}{call}", config, listener)
            assert_same(outcome(run), expected)
            assert len([text for text in listener.said if "no route to host" in text]) == 1


def test_a_service_that_cannot_be_reached_is_given_up(tally: Tally, expected: dict[str, Any], tmp_path: Path) -> None:
    """The real Weights & Biases class, whose package raises as it does without a network."""

    class Package:
        @staticmethod
        def init(**_: Any) -> None:
            raise TimeoutError("api.wandb.ai: timed out")

    with tally.case("wandb.init"), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", Package)
        patch.setattr(loggers, "_installed", lambda module: module == "wandb")
        listener = Listener()
        run = start(tmp_path / "run", broken_config(training__wandb=True), listener)
        assert_same(outcome(run), expected)
        assert any("timed out" in text for text in listener.said)
