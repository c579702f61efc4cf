"""Several tasks in one run: stages, retests, added tasks, tasks learnt together; and that resuming changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SETTINGS, SignalAt, assert_same, flags, outcome, small_config, start

from ctrlformer import api
from ctrlformer.cli.main import main
from ctrlformer.config import Config, TransferConfig
from ctrlformer.errors import CheckpointError, ConfigError, RunError, TaskError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch
from ctrlformer.training.callbacks import Callback, StepInfo
from ctrlformer.training.collect import Collector

PAIR = ("toy/reach", "toy/slide")
PAIR_ALIKE = ("toy/reach", "toy/reach_sparse")  # both with two actions


def pair_config(**changes: Any) -> Config:
    return small_config(*PAIR, **{"training__frames": 40, **changes})


def kinds(run: RunFolder) -> list[tuple[int, str, str, int]]:
    return [(row["stage"], row["task"], row["kind"], row["frames"]) for row in run.read_evals()]


def stopped_often(folder: Path, config: Config, stops: list[SignalAt]) -> RunFolder:
    """A run stopped by each of `stops` in turn, then finished."""
    with pytest.raises(KeyboardInterrupt):
        start(folder, config, stops[0])
    for stop in stops[1:]:
        with pytest.raises(KeyboardInterrupt):
            launch.resume(folder, callbacks=[stop])
    return launch.resume(folder)


# One after the other


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    config = pair_config(transfer__protect="rehearse", transfer__retest_every_frames=16)
    return start(tmp_path_factory.mktemp("runs") / "whole", config)


def test_earlier_tasks_are_retested_on_schedule_and_at_the_end(whole: RunFolder) -> None:
    assert kinds(whole) == [
        (0, "toy/reach", "learn", 0),
        (0, "toy/reach", "learn", 22),
        (0, "toy/reach", "final", 40),
        (1, "toy/slide", "learn", 0),
        (1, "toy/reach", "retest", 0),
        (1, "toy/reach", "retest", 16),
        (1, "toy/slide", "learn", 22),
        (1, "toy/reach", "retest", 32),
        (1, "toy/slide", "final", 40),
        (1, "toy/reach", "retest", 40),
    ]


def test_a_first_stage_has_no_retests_and_without_a_schedule_there_is_one_at_the_end(tmp_path: Path) -> None:
    run = start(tmp_path / "run", pair_config(training__frames=24))
    assert [(stage, task, frames) for stage, task, kind, frames in kinds(run) if kind == "retest"] == [
        (1, "toy/reach", 24)
    ]


def test_drift_of_earlier_tasks_is_logged_in_later_stages(whole: RunFolder) -> None:
    for row in whole.read_metrics():
        assert ("drift/toy/reach" in row) == (row["stage"] == 1)
        assert "drift/toy/slide" not in row
    assert "rehearsal_loss" in whole.read_metrics()[-1]


@pytest.mark.parametrize(
    "stops",
    [
        [SignalAt(evaluation=3)],  # the new stage's first evaluation
        [SignalAt(evaluation=4)],  # its first retest
        [SignalAt(evaluation=9)],  # the retest at the very end
        [SignalAt(step=20), SignalAt(step=1), SignalAt(step=13), SignalAt(step=20)],  # the stages' ends
    ],
)
def test_resume_is_exact_across_stages_and_in_the_middle_of_a_retest(
    stops: list[SignalAt], whole: RunFolder, tmp_path: Path
) -> None:
    assert_same(outcome(stopped_often(tmp_path / "run", whole.config, stops)), outcome(whole))


# Adding to a finished run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("runs") / "first", small_config("toy/reach", training__frames=40))


def same_but_for_the_config(found: RunFolder, expected: RunFolder) -> None:
    assert_same(outcome(found), {**outcome(expected), "replay": outcome(found)["replay"]})


@pytest.mark.parametrize("heads", ["fresh", "copy"])
def test_adding_a_task_gives_what_training_both_gives(heads: str, first: RunFolder, tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", pair_config(transfer__heads=heads))
    added = launch.add(first.path, "toy/slide", transfer=TransferConfig(heads=heads), into=tmp_path / "added")
    same_but_for_the_config(added, whole)
    assert added.config.all_tasks == PAIR
    assert added.config.stages[1] == whole.config.stages[1]


def test_a_run_that_was_copied_is_free_again_while_the_copy_learns(first: RunFolder, tmp_path: Path) -> None:
    class Copying(Callback):
        copies = 0

        def on_step(self, step: StepInfo) -> None:
            with first.lock(patience=0.0):
                self.copies += 1

    copying = Copying()
    launch.add(first.path, "toy/slide", frames=12, into=tmp_path / "copy", callbacks=[copying])
    assert copying.copies == 6


def test_an_added_stage_that_was_stopped_resumes_exactly(first: RunFolder, tmp_path: Path) -> None:
    whole = launch.add(first.path, "toy/slide", frames=30, into=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        launch.add(first.path, "toy/slide", frames=30, into=tmp_path / "broken", callbacks=[SignalAt(step=7)])
    with pytest.raises(RunError, match="has not finished its tasks: `ctrlformer resume"):
        launch.add(tmp_path / "broken", "toy/reach_sparse")
    assert_same(outcome(launch.resume(tmp_path / "broken")), outcome(whole))
    assert [row["frames"] for row in whole.read_evals() if row["kind"] == "final"] == [40, 30]


def test_adding_into_a_copy_leaves_the_run_alone(first: RunFolder, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in first.path.rglob("*") if path.is_file() and path.name != "lock"}
    launch.add(first.path, "toy/slide", frames=24, into=tmp_path / "copy")
    after = {path: path.read_bytes() for path in first.path.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before
    assert not (tmp_path / "copy" / "replay" / "toy+reach").exists()


def test_a_run_can_be_copied_while_another_copy_draws_its_first_picture(
    first: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ways to go on from one run are often started at once, and the first picture of a task takes seconds."""
    draw = launch.pixel_fingerprint

    def draw_with_the_run_free(*args: Any) -> str:
        with first.lock(patience=0):
            return draw(*args)

    monkeypatch.setattr(launch, "pixel_fingerprint", draw_with_the_run_free)
    launch.add(first.path, "toy/slide", frames=24, into=tmp_path / "copy")


def test_adding_in_place_goes_on_in_the_same_folder(first: RunFolder, tmp_path: Path) -> None:
    copy = first.copy(tmp_path / "run")
    run = launch.add(copy.path, "toy/slide", frames=24)
    assert run.path == copy.path
    assert api.load(run.path).tasks == list(PAIR)


def test_what_cannot_be_added_is_refused_and_nothing_changes(first: RunFolder, tmp_path: Path) -> None:
    before = (first.path / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="'toy/reach' is named twice"):
        launch.add(first.path, "toy/reach")
    with pytest.raises(TaskError, match="unknown task 'toy/slid'"):
        launch.add(first.path, "toy/slid")
    with pytest.raises(ConfigError, match="frames is 0"):
        launch.add(first.path, "toy/slide", frames=0)
    with pytest.raises(RunError, match="already holds"):
        launch.add(first.path, "toy/slide", into=first.path)
    assert (first.path / "config.json").read_bytes() == before


def test_the_command_adds_with_the_runs_own_settings(first: RunFolder, tmp_path: Path) -> None:
    data = json.loads((first.copy(tmp_path / "run").path / "config.json").read_text())
    data["transfer"]["heads"] = "copy"
    (tmp_path / "run" / "config.json").write_text(json.dumps(data))
    command = ["add", str(tmp_path / "run"), "toy/slide", "--frames", "24", "--transfer.protect", "freeze"]
    assert main([*command, "--retest-every", "12"]) == 0
    (stage,) = RunFolder.open(tmp_path / "run").config.added
    assert (stage.tasks, stage.frames) == (("toy/slide",), 24)
    assert stage.transfer == TransferConfig(heads="copy", protect="freeze", retest_every_frames=12)


def test_bad_input_to_the_command_is_one_line(
    first: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, complaint in (
        ([str(tmp_path / "none"), "toy/slide"], "no run folder at"),
        ([str(first.path)], "TASK"),
        ([str(first.path), "toy/slide", "--transfer.heads", "borrow"], "borrow"),
        ([str(first.path), "toy/slide", "--transfer.encoder-lr-scale", "-1"], "encoder_lr_scale is -1"),
    ):
        assert main(["add", *words]) == 2
        error = capsys.readouterr().err
        assert complaint in error
        assert error.count("\n") == 1


def test_damaged_kept_observations_are_named(first: RunFolder, tmp_path: Path) -> None:
    run = first.copy(tmp_path / "run")
    file = run.rehearsal_buffer("toy/reach")
    file.write_bytes(file.read_bytes()[:-1])
    said = SignalAt()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        launch.add(run.path, "toy/slide", frames=24, callbacks=[said])
    assert any(f"{file} is damaged" in line for line in said.said)


def test_copied_heads_act_from_the_first_step_and_fresh_ones_begin_at_random(tmp_path: Path) -> None:
    """Told by the generator that random actions are drawn from: the policy's noise has one of its own."""
    for heads, at_random in (("fresh", True), ("copy", False)):
        config = small_config(*PAIR_ALIKE, training__frames=16, transfer__heads=heads)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / heads, config, SignalAt(step=5, stage="toy/reach_sparse"))
        state = checkpoint.load(tmp_path / heads / "checkpoints").state["trainer"]["lanes"]["toy/reach_sparse"]
        untouched = np.random.default_rng((config.seed, 1, 0)).bit_generator.state
        assert (state["random"] != untouched) == at_random


# Together


def test_tasks_learnt_together_take_turns_and_get_the_whole_budget_each(tmp_path: Path) -> None:
    run = api.train(PAIR, preset="tiny", run=tmp_path / "run", together=True, overrides=SETTINGS, quiet=True)
    assert {(row["task"], row["frames"]) for row in run.read_evals() if row["kind"] == "final"} == {
        ("toy/reach", 64),
        ("toy/slide", 64),
    }
    assert {row["stage"] for row in run.read_evals()} == {0}
    assert "retest" not in {row["kind"] for row in run.read_evals()}
    tasks = [row["task"] for row in run.read_metrics()]
    assert tasks == ["toy/reach", "toy/slide"] * (len(tasks) // 2)
    assert run.read_metrics()[-1]["updates"] == 2 * (32 - 9)
    assert [p.name for p in sorted((run.path / "replay").iterdir())] == ["toy+reach", "toy+slide"]


def test_tasks_of_different_action_repeat_stay_together(tmp_path: Path) -> None:
    config = launch.dataclasses.replace(
        small_config("toy/reach", "cartpole_balance", training__frames=24), together=True
    )
    run = start(tmp_path / "run", config)
    frames = {row["task"]: row["steps"] for row in run.read_metrics()}
    assert frames == {"toy/reach": 12, "cartpole_balance": 3}


def test_training_together_resumes_exactly(tmp_path: Path) -> None:
    config = launch.dataclasses.replace(pair_config(), together=True)
    whole = start(tmp_path / "whole", config)
    broken = stopped_often(tmp_path / "broken", config, [SignalAt(step=step) for step in (1, 9, 12, 31)])
    assert_same(outcome(broken), outcome(whole))


def test_a_task_can_be_added_after_training_together(tmp_path: Path) -> None:
    config = launch.dataclasses.replace(pair_config(training__frames=20), together=True)
    run = start(tmp_path / "run", config)
    launch.add(run.path, "toy/reach_sparse", frames=16)
    assert [row[:3] for row in kinds(RunFolder.open(run.path))[-2:]] == [
        (1, "toy/reach", "retest"),
        (1, "toy/slide", "retest"),
    ]


def test_the_command_line_trains_together(tmp_path: Path) -> None:
    words = ["train", *PAIR, "--together", "--run", str(tmp_path / "run"), *flags(), "--training.frames", "20"]
    assert main(words) == 0
    assert RunFolder.open(tmp_path / "run").config.together


def test_one_task_together_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy/reach", "--together"]) == 2
    assert "together needs two tasks or more" in capsys.readouterr().err


# Keeping the old tasks, in whole trainings


def final_drift(run: RunFolder) -> float:
    return float(run.read_metrics()[-1]["drift/toy/reach"])


@pytest.mark.parametrize("attention", ["joint", "causal"])
def test_rehearsing_cuts_the_drift_of_old_outputs_fivefold(attention: str, tmp_path: Path) -> None:
    changes = {
        "training__frames": 120,
        "training__eval_every_frames": 1000,
        "training__checkpoint_every_frames": 1000,
        "agent__batch_size": 16,
        "encoder__task_attention": attention,
        "transfer__encoder_lr_scale": 1.0,  # without the slow encoder there is something to hold
    }
    learnt = start(tmp_path / "first", small_config("toy/reach", **changes))
    drifts = {}
    for protect in ("none", "rehearse"):
        run = launch.add(
            learnt.path,
            "toy/slide",
            frames=120,
            transfer=TransferConfig(encoder_lr_scale=1.0, protect=protect),
            into=tmp_path / protect,
        )
        drifts[protect] = final_drift(run)
    assert drifts["rehearse"] * 5 <= drifts["none"], drifts


def test_causal_and_frozen_runs_keep_the_old_task_to_the_last_bit(tmp_path: Path) -> None:
    config = pair_config(encoder__task_attention="causal", transfer__protect="freeze", training__final_episodes=2)
    run = start(tmp_path / "run", config)
    final, retest = (row["returns"] for row in run.read_evals() if row["task"] == "toy/reach" and row["frames"] == 40)
    assert final == retest
    drifts = [row["drift/toy/reach"] for row in run.read_metrics() if row["stage"] == 1]
    assert max(drifts) < 1e-5  # measured in batches of another size than the outputs were kept in


def test_a_frozen_encoder_in_the_checkpoint_is_the_one_before(tmp_path: Path) -> None:
    first = start(tmp_path / "first", small_config("toy/reach", training__frames=30))
    before = checkpoint.load(first.checkpoints).tensors["encoder"]
    run = launch.add(
        first.path, "toy/slide", frames=30, transfer=TransferConfig(protect="freeze"), into=tmp_path / "frozen"
    )
    after = checkpoint.load(run.checkpoints).tensors["encoder"]
    grown = {name for name in before if name.startswith("statistics")}
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - grown)


@pytest.mark.slow
def test_sixteen_real_tasks_in_one_run(tmp_path: Path) -> None:
    tasks = [
        "cartpole_balance",
        "cartpole_balance_sparse",
        "cartpole_swingup",
        "cartpole_swingup_sparse",
        "reacher_easy",
        "reacher_hard",
        "finger_spin",
        "finger_turn_easy",
        "finger_turn_hard",
        "walker_stand",
        "walker_walk",
        "walker_run",
        "cheetah_run",
        "ball_in_cup_catch",
        "pendulum_swingup",
        "manipulation/reach_site",
    ]
    run = start(tmp_path / "run", small_config(*tasks, training__frames=24, training__eval_every_frames=1000))
    retests = [row for row in run.read_evals() if row["kind"] == "retest"]
    assert len(retests) == 16 * 15 // 2
    assert len(api.load(run.path).tasks) == 16


@pytest.mark.parametrize(("random_start", "random_steps"), [(False, 0), (True, SETTINGS["training.seed_steps"])])
def test_copied_heads_act_from_the_first_step_unless_a_random_start_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_start: bool, random_steps: int
) -> None:
    start(tmp_path / "run", small_config(PAIR_ALIKE[0], training__frames=40))
    at_random = []
    choose = Collector.choose

    def noted(self: Collector, rng: np.random.Generator | None) -> Any:
        at_random.append(rng is not None)
        return choose(self, rng)

    monkeypatch.setattr(Collector, "choose", noted)
    transfer = TransferConfig(heads="copy", random_start=random_start, kept_observations=4)
    launch.add(tmp_path / "run", PAIR_ALIKE[1], frames=40, transfer=transfer)
    assert at_random == [True] * random_steps + [False] * (20 - random_steps)
