"""Real small trainings: what they write, how they stop, and that a resume changes nothing."""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from matplotlib.figure import Figure
from small_runs import STEPS, SignalAt, assert_same, outcome, small_config, spawn, start

from ctrlformer.agents import SacAgent
from ctrlformer.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from ctrlformer.replay import Batch
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch
from ctrlformer.training.progress import Averages


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("runs") / "unbroken")


@pytest.fixture(scope="module")
def expected(unbroken: RunFolder) -> dict[str, Any]:
    return outcome(unbroken)


# What a run writes


def test_evaluates_at_the_start_on_schedule_and_at_the_end(unbroken: RunFolder) -> None:
    rows = unbroken.read_evals()
    assert [(row["frames"], row["kind"]) for row in rows] == [(0, "learn"), (22, "learn"), (44, "learn"), (64, "final")]
    for row in rows:
        assert list(row) == ["stage", "task", "kind", "frames", "steps", "returns", "mean", "std", "minutes"]
        assert row["steps"] == row["frames"] // 2
        assert row["mean"] == np.mean(row["returns"])
    minutes = [row["minutes"] for row in rows]
    assert minutes == sorted(minutes)
    assert minutes[0] > 0


def test_metrics_cover_every_step_once(unbroken: RunFolder) -> None:
    rows = unbroken.read_metrics()
    assert [row["steps"] for row in rows] == [7, 14, 21, 28, 32]
    assert [row["updates"] for row in rows] == [0, 5, 12, 19, 23]
    assert "critic_loss" not in rows[0]
    assert all("critic_loss" in row for row in rows[1:])
    assert [row["episodes"] for row in rows] == [0, 0, 0, 1, 1]
    assert ["return" in row for row in rows] == [False, False, False, True, False]


def test_learning_changes_the_weights_and_the_curve_is_drawn(unbroken: RunFolder) -> None:
    assert (unbroken.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    rows = unbroken.read_evals()
    assert rows[0]["mean"] != rows[-1]["mean"]


def test_the_same_seed_gives_the_same_run_and_another_does_not(expected: dict[str, Any], tmp_path: Path) -> None:
    assert_same(outcome(start(tmp_path / "again")), expected)
    other = start(tmp_path / "other", launch.dataclasses.replace(small_config(), seed=2))
    assert outcome(other)["evals"] != expected["evals"]


def test_averages_count_each_figure_by_itself() -> None:
    averages = Averages()
    averages.add({"a": 1.0, "b": 10.0})
    averages.add({"a": 3.0})
    assert averages.take() == {"a": 2.0, "b": 10.0}
    assert averages.take() == {}


# Stopping and going on


def stop_and_resume(folder: Path, stop: SignalAt, error: type[BaseException] = KeyboardInterrupt) -> RunFolder:
    with pytest.raises(error):
        start(folder, None, stop)
    return launch.resume(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"agent__updates_per_step": 3},
        {"agent__update_every": 3},
        {"agent__frames_per_update": 3},
        {"agent__exploration": "pink"},
        {"agent__exploration": "pink", "agent__past_actions": 2, "agent__head_updates": 2},
        {"training__precision": "bf16"},
        {"training__threads": 2},  # encoder passes in two shards
        {"training__episode_frames": 20},  # the second episode is open
        {"training__replay_capacity": 8},  # the ring goes round while batches are drawn ahead
    ],
)
def test_resume_is_exact_with_other_settings(changes: dict[str, Any], tmp_path: Path) -> None:
    config = small_config(**changes)
    threads = torch.get_num_threads()
    try:
        whole = start(tmp_path / "whole", config)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "broken", config, SignalAt(step=17))
        assert_same(outcome(launch.resume(tmp_path / "broken")), outcome(whole))
    finally:
        torch.set_num_threads(threads)


def test_a_replay_on_the_device_gives_the_same_run(expected: dict[str, Any], tmp_path: Path) -> None:
    assert_same(outcome(start(tmp_path / "run", small_config(training__replay_on="device"))), expected)


def test_the_threads_of_a_stage_end_with_it(unbroken: RunFolder) -> None:
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("player")]


def test_a_task_drawn_by_opengl_resumes_exactly(tmp_path: Path) -> None:
    """An OpenGL context belongs to one thread, and playing has its own."""
    config = small_config("cartpole_balance", training__frames=8 * 14, training__eval_every_frames=60)
    whole = start(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "broken", config, SignalAt(step=44))  # frame 88, step 11 of 8 frames
    assert_same(outcome(launch.resume(tmp_path / "broken")), outcome(whole))


def test_minutes_go_on_counting_over_a_resume(tmp_path: Path) -> None:
    run = stop_and_resume(tmp_path / "run", SignalAt(step=16))
    minutes = [row["minutes"] for row in run.read_evals()]
    assert minutes == sorted(minutes)


def test_a_finished_run_stays_as_it_is(unbroken: RunFolder, expected: dict[str, Any]) -> None:
    assert_same(outcome(launch.resume(unbroken.path)), expected)


def test_sigterm_leaves_with_143(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        start(tmp_path / "run", None, SignalAt(step=4, number=signal.SIGTERM))
    assert left.value.code == 143


# Real processes


def wait_for_rows(process: Any, path: Path, rows: int) -> None:
    """Until the training has written so many rows; a training that ends before fails the test."""
    while not path.exists() or path.read_bytes().count(b"\n") < rows:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_command_saves_and_resume_is_exact(
    number: int, code: int, expected: dict[str, Any], tmp_path: Path
) -> None:
    process = spawn("train", "toy/reach", "--run", tmp_path / "run", *small_runs.flags())
    wait_for_rows(process, tmp_path / "run" / "metrics.jsonl", 2)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == code, complaints
    assert "Traceback" not in complaints
    steps = checkpoint.load(tmp_path / "run" / "checkpoints").state["trainer"]["position"]["tasks"][0]["steps"]
    assert steps not in (0, 13, 26)  # not just the scheduled checkpoints
    assert_same(outcome(launch.resume(tmp_path / "run")), expected)


# Things that go wrong


def test_a_loss_that_is_not_a_number_stops_and_the_last_checkpoint_is_kept(tmp_path: Path) -> None:
    config = small_config(agent__learning_rate=1e30)
    with pytest.raises(NonFiniteError, match=r"last checkpoint is intact"):
        start(tmp_path / "run", config)
    saved = checkpoint.load(tmp_path / "run" / "checkpoints")
    for group in saved.tensors.values():
        assert all(bool(tensor.isfinite().all()) for tensor in group.values() if tensor.is_floating_point())


def test_a_second_training_in_one_folder_is_refused(unbroken: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="resume"):
        start(unbroken.path)
    run = RunFolder.create(tmp_path / "run", small_config())
    with run.lock(), pytest.raises(RunError, match=r"in use by process \d+"):
        launch.resume(run.path)


def test_what_can_be_refused_is_refused_before_a_folder_exists(tmp_path: Path) -> None:
    for config in (small_config(training__device="cuda:99"), launch.dataclasses.replace(small_config(), tasks=())):
        with pytest.raises(ConfigError):
            start(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on(expected: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", None, SignalAt(step=20))
    newest = tmp_path / "run" / "checkpoints" / "20" / "encoder.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    listener = SignalAt()
    run = launch.resume(tmp_path / "run", callbacks=[listener])
    assert any(str(newest) in text for text in listener.said)
    assert_same(outcome(run), expected)


def test_without_any_checkpoint_a_run_with_results_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", None, SignalAt(step=20))
    for path in (tmp_path / "run" / "checkpoints").rglob("manifest.json"):
        path.unlink()
    before = (tmp_path / "run" / "evals.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        launch.resume(tmp_path / "run")
    assert (tmp_path / "run" / "evals.jsonl").read_bytes() == before


def test_other_pixels_or_versions_are_warned_of(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", None, SignalAt(step=4))
    path = tmp_path / "run" / "environment.json"
    facts = json.loads(path.read_text())
    assert len(facts["pixels"]) == 16
    path.write_text(json.dumps(facts | {"pixels": "0" * 16, "python": "2.7"}))
    listener = SignalAt()
    launch.resume(tmp_path / "run", callbacks=[listener])
    assert [text.split()[1] for text in listener.said] == ["pixels", "python"]


def test_drawn_curves_do_not_stay_in_memory(tmp_path: Path) -> None:
    def figures() -> int:
        return sum(type(one) is Figure for one in gc.get_objects())  # `isinstance` would ask dead references

    gc.collect()
    before = figures()
    gc.disable()  # as good as it is in a long training, where Python seldom looks through everything
    try:
        start(tmp_path / "run", small_config())
        assert figures() <= before
    finally:
        gc.enable()


# Schedules


def progress_of_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[float]:
    """What every update of a training is told of its place in the stage."""
    seen: list[float] = []
    update = SacAgent.update

    def noted(self: SacAgent, task: str, batch: Batch, progress: float, *more: Any) -> dict[str, torch.Tensor]:
        seen.append(progress)
        return update(self, task, batch, progress, *more)

    monkeypatch.setattr(SacAgent, "update", noted)
    start(tmp_path / "run", small_config(**changes))
    return seen


@pytest.mark.parametrize("changes", [{}, {"agent__update_every": 3}, {"agent__updates_per_step": 2}])
def test_schedules_count_updates_and_not_the_random_steps_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Half of the stage is random steps: of what remains, the late learning rate holds for the last 40 %."""
    seen = progress_of_updates(tmp_path, monkeypatch, training__seed_steps=STEPS // 2, **changes)
    expected = [number / len(seen) for number in range(len(seen))]
    assert seen == pytest.approx(expected, abs=1 / len(seen))
    late = sum(progress >= 0.6 for progress in seen)
    assert abs(late - 0.4 * len(seen)) <= 1


def test_a_new_stage_begins_its_schedules_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = progress_of_updates(tmp_path, monkeypatch)
    run = launch.add(tmp_path / "run", "toy/slide")
    assert run.config.added
    assert seen[len(seen) // 2] == seen[0] == 0.0
