"""What a new task starts from: probes of old policies in it, the choice, and that resuming changes nothing."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from small_dreamers import small_dreamer
from small_runs import SETTINGS, SignalAt, assert_same, flags, outcome, start
from torch import Tensor

import ctrlformer
from ctrlformer.analysis.metrics import learning_curve, read_run
from ctrlformer.cli.main import main
from ctrlformer.config import Config, TransferConfig
from ctrlformer.config.presets import make_config
from ctrlformer.envs.pixels import FrameResult
from ctrlformer.envs.toy import SPEED, Toy
from ctrlformer.replay.rehearsal import Outputs, RehearsalBuffer
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training import launch, probes, stage
from ctrlformer.training.callbacks import Callback
from ctrlformer.training.collect import Collector
from ctrlformer.training.probes import RANDOM

OLD, OTHER, NEW = "toy/reach", "toy/slide", "toy/reach_sparse"  # two actions, one, two
SMALL = SETTINGS | {
    "env.image_size": 12,
    "training.eval_every_frames": 1000,
    "training.log_every_steps": 1,
    "transfer.source": "auto",
    "transfer.heads": "auto",
    "transfer.warmup_updates": 6,
    "transfer.kept_observations": 20,
}


def small(*tasks: str, **changes: Any) -> Config:
    settings = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    return make_config(tasks or (OLD, NEW), "tiny", None, 1, settings)


def rewarding(monkeypatch: pytest.MonkeyPatch, steady: bool) -> None:
    """An action near the one before is rewarded: that of any policy that has learnt little is, a random one is seldom.
    Not `steady`, an action that is not near it is rewarded. Probes take half of the stage: 4 steps an episode."""
    step = Toy.step

    def step_for_steadiness(self: Any, action: Any) -> FrameResult:
        self.seen = [*(self.seen if self._frames else []), action]
        near = len(self.seen) > 2 and float(np.abs(action - self.seen[-3]).max()) < 0.5 * SPEED  # two frames a step
        return step(self, action)._replace(reward=float(near == steady))

    monkeypatch.setattr(Toy, "step", step_for_steadiness)
    monkeypatch.setattr(stage, "SHARE", 0.5)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    rewarding(monkeypatch, True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Steady actions are rewarded here and in every test that compares with it."""
    with pytest.MonkeyPatch.context() as patch:
        rewarding(patch, True)
        return start(tmp_path_factory.mktemp("runs") / "whole", small())


def probe_rows(run: RunFolder) -> list[dict[str, Any]]:
    return [row for row in run.read_evals() if row["kind"] == "probe"]


def stopped_before_learning(folder: Path, config: Config) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Encoder and heads as a new task's stage finds them: the run stops at that stage's first evaluation."""
    with pytest.raises(KeyboardInterrupt):
        start(folder, config, SignalAt(evaluation=2 * len(config.tasks) - 2 + sum(range(len(config.tasks) - 1))))
    saved = checkpoint.load(folder / "checkpoints").tensors
    return saved["encoder"], saved["heads"]


def starts_as(heads: dict[str, Tensor], old: int, new: int) -> bool:
    names = [name.removeprefix(f"{old}.") for name in heads if name.startswith((f"{old}.actor", f"{old}.critic"))]
    return all(torch.equal(heads[f"{old}.{name}"], heads[f"{new}.{name}"]) for name in names)


# The choice


def test_a_policy_that_clearly_beats_random_actions_is_copied_with_its_heads(steady: None, tmp_path: Path) -> None:
    """From the first task, although another came between: that one has other actions and is not probed."""
    encoder, heads = stopped_before_learning(tmp_path / "run", small(OLD, OTHER, NEW, training__frames=40))
    rows = [row for row in probe_rows(RunFolder.open(tmp_path / "run")) if row["task"] == NEW]
    assert [row["source"] for row in rows] == [RANDOM, OLD]
    assert rows[1]["mean"] > 1.1 * rows[0]["mean"]
    assert {(row["chosen"], row["heads"]) for row in rows} == {(OLD, True)}
    assert torch.equal(encoder["policy_tokens.2"], encoder["policy_tokens.0"])
    assert starts_as(heads, 0, 2)


def test_else_the_token_of_the_most_similar_task_and_new_heads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rewarding(monkeypatch, False)
    monkeypatch.setattr(probes, "most_similar", lambda finished, observations: finished[-1].task)
    encoder, heads = stopped_before_learning(tmp_path / "run", small(OLD, OTHER, NEW, training__frames=40))
    rows = [row for row in probe_rows(RunFolder.open(tmp_path / "run")) if row["task"] == NEW]
    assert rows[1]["mean"] < rows[0]["mean"]
    assert {(row["chosen"], row["heads"]) for row in rows} == {(OTHER, False)}
    assert torch.equal(encoder["policy_tokens.2"], encoder["policy_tokens.1"])
    assert not torch.equal(encoder["policy_tokens.2"], encoder["policy_tokens.0"])
    assert not starts_as(heads, 0, 2)


def test_without_a_policy_that_fits_only_random_actions_are_probed(steady: None, tmp_path: Path) -> None:
    run = start(tmp_path / "run", small(OLD, OTHER, training__frames=24))
    assert [(row["source"], row["chosen"], row["heads"]) for row in probe_rows(run)] == [(RANDOM, OLD, False)]


def test_a_named_source_needs_no_probes(tmp_path: Path) -> None:
    class Said(Callback):
        lines: list[str] = []  # noqa: RUF012 (one instance)

        def on_message(self, text: str) -> None:
            self.lines.append(text)

    first = start(tmp_path / "first", small(OLD, OTHER, training__frames=24, transfer__source="previous"))
    run = ctrlformer.add(  # by its other spelling; it is not the task before, and unknown when that was learnt
        first.path,
        NEW,
        overrides={"transfer.source": "Toy/Reach"},
        into=tmp_path / "run",
        callbacks=[Said()],
        quiet=True,
    )
    assert run.config.stages[2].transfer.source == OLD
    assert not probe_rows(run)
    assert Said.lines == [f"{NEW} starts from {OLD}, with its heads"]


LEVELS = (("high", 1.0), ("low", 0.0))


def buffer_of(task: str, level: int) -> RehearsalBuffer:
    rng = np.random.default_rng(level)
    shown = torch.from_numpy((level + rng.integers(-20, 20, (100, 8, 8, 9))).astype(np.uint8))
    return RehearsalBuffer(task, shown, Outputs(*(torch.zeros(100, 2) for _ in range(3))), "")


def test_the_most_similar_task_has_the_nearest_mean_observation() -> None:
    finished = [buffer_of("dark", 50), buffer_of("bright", 200), buffer_of("middle", 120)]
    assert probes.most_similar(finished, buffer_of("", 180).observations) == "bright"
    assert probes.most_similar(finished, buffer_of("", 60).observations) == "dark"
    features = [RehearsalBuffer(name, torch.full((9, 3, 4), at), finished[0].outputs, "") for name, at in LEVELS]
    assert probes.most_similar(features, torch.full((5, 3, 4), 0.7)) == "high"


# Frames, and first experience


def test_probes_count_in_the_budget_and_fill_the_replay(steady: None, tmp_path: Path) -> None:
    config = small()
    stopped_before_learning(tmp_path / "run", config)
    run = RunFolder.open(tmp_path / "run")
    rows, saved = probe_rows(run), checkpoint.load(run.checkpoints).state["trainer"]
    assert [(row["frames"], row["steps"], len(row["returns"])) for row in rows] == [(16, 8, 2), (16, 8, 2)]
    (position,) = saved["position"]["tasks"]
    assert (position["frames"], position["steps"], position["probe_steps"]) == (32, 16, 8)
    lane = saved["lanes"][NEW]
    assert (lane["replay"]["steps"], lane["episode"]) == (16, 2)
    run = launch.resume(run.path)
    assert [row["frames"] for row in run.read_evals() if row["task"] == NEW and row["kind"] != "probe"] == [32, 64]
    assert checkpoint.load(run.checkpoints).state["trainer"]["position"]["earlier_frames"] == 128


@pytest.mark.parametrize(("copied", "random", "learns"), [(True, 0, 16), (False, 4, 20)])
def test_old_policies_are_no_substitute_for_random_first_steps(
    copied: bool, random: int, learns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """New heads have 12 random steps as ever, 8 of them in probes, beside 8 of the old policy. Copied heads act after
    the probes, and learn at once: the task has had 16 steps."""
    chosen, choose = [], Collector.choose

    def choose_and_note(self: Collector, generator: np.random.Generator | None) -> Any:
        chosen.append((self._task, generator is not None))
        return choose(self, generator)

    rewarding(monkeypatch, copied)
    monkeypatch.setattr(Collector, "choose", choose_and_note)
    run = start(tmp_path / "run", small(training__seed_steps=12))
    assert [row["heads"] for row in probe_rows(run)] == [copied, copied]
    assert chosen.count((NEW, True)) == random
    rows = [row for row in run.read_metrics() if row["task"] == NEW]
    assert min(row["steps"] for row in rows if "critic_loss" in row) == learns + 1


# Scores


def test_scores_and_curves_know_nothing_of_probes(whole: RunFolder) -> None:
    scores = read_run(whole.path)
    assert [(probe.policy, probe.task, probe.start) for probe in scores.probes] == [
        (RANDOM, NEW, f"{OLD} with its heads"),
        (OLD, NEW, f"{OLD} with its heads"),
    ]
    assert {row.kind for row in scores.rows} == {"learn", "final", "retest"}
    assert learning_curve(scores, NEW).frames.tolist() == [32.0, 64.0]


# Resuming


class Interrupted(Callback):
    """A real signal to the process in the middle of the probes: at the second step of a new task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def on_message(self, text: str) -> None:
        if not text.startswith("probes in"):
            return
        step, steps = Toy.step, iter((False, False, False, True))  # two frames are one step
        handler, noticed = signal.getsignal(signal.SIGINT), threading.Event()
        assert callable(handler)

        def handle_and_tell(number: int, frame: FrameType | None) -> None:
            handler(number, frame)
            noticed.set()

        def step_and_signal(toy: Toy, action: Any) -> FrameResult:
            if next(steps, False):
                os.kill(os.getpid(), signal.SIGINT)
                assert noticed.wait(60)  # the main thread, which waits for the probes, handles signals
            return step(toy, action)

        signal.signal(signal.SIGINT, handle_and_tell)  # the training puts its caller's back at its end
        self._monkeypatch.setattr(Toy, "step", step_and_signal)


class Killed(Callback):
    """Ends the training without a checkpoint once the probes are logged."""

    def on_evaluation(self, row: dict[str, Any], total_frames: int) -> None:
        if row["kind"] == "probe" and row["source"] == OLD:
            raise RuntimeError("killed")


def test_a_resume_is_exact_after_a_stop_in_the_middle_of_probes(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        rewarding(patch, True)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "run", small(), Interrupted(patch))
    run = RunFolder.open(tmp_path / "run")
    assert not probe_rows(run)
    assert checkpoint.load(run.checkpoints).state["trainer"]["position"]["stage"] == 1
    rewarding(monkeypatch, True)
    assert_same(outcome(launch.resume(run.path)), outcome(whole))


@pytest.mark.parametrize(
    "stop",
    [
        SignalAt(evaluation=2),  # right after the probes
        SignalAt(step=18, stage=NEW),  # in the warm-up
        SignalAt(step=26, stage=NEW),  # after it
    ],
)
def test_a_resume_is_exact_after_a_stop_after_probes(
    stop: SignalAt, steady: None, whole: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", small(), stop)
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(whole))


def test_a_resume_is_exact_after_a_sudden_end_after_probes(steady: None, whole: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        start(tmp_path / "run", small(), Killed())
    assert len(probe_rows(RunFolder.open(tmp_path / "run"))) == 2, "logged, and not in any checkpoint"
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(whole))


def test_adding_a_task_gives_what_training_both_gives(steady: None, whole: RunFolder, tmp_path: Path) -> None:
    first = start(tmp_path / "first", small(OLD, transfer__source="previous", transfer__heads="fresh"))
    auto = TransferConfig(source="auto", heads="auto", warmup_updates=6, kept_observations=20)
    added = launch.add(first.path, NEW, transfer=auto, into=tmp_path / "added")
    found, expected = outcome(added), outcome(whole)
    assert_same(found | {"replay": {}}, expected | {"replay": {}})  # a copy of a run goes without old replays


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder__kind": "conv", "encoder__patch_size": 4, "encoder__dim": 8},
        {"encoder__kind": "cnn", "env__image_size": 36},
        {"agent__prediction": True, "encoder__normalise_pixels": False},
    ],
)
def test_other_agents_probe_and_resume_exactly(changes: dict[str, Any], steady: None, tmp_path: Path) -> None:
    config = small(training__frames=40, **changes)
    expected = start(tmp_path / "whole", config)
    assert [row["heads"] for row in probe_rows(expected)] == [True, True]
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config, SignalAt(step=14, stage=NEW))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(expected))


def test_dreamer_probes_and_resumes_exactly(steady: None, tmp_path: Path) -> None:
    auto = {"transfer__source": "auto", "transfer__heads": "auto", "transfer__warmup_updates": 2}
    config = small_dreamer(OLD, NEW, training__frames=40, training__eval_every_frames=1000, **auto)
    expected = start(tmp_path / "whole", config)
    assert [row["source"] for row in probe_rows(expected)] == [RANDOM, OLD]
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", config, SignalAt(step=14, stage=NEW))
    assert_same(outcome(launch.resume(tmp_path / "run")), outcome(expected))


# The command line


@pytest.mark.parametrize(
    ("tasks", "source", "complaint"),
    [
        ((OLD, OTHER), "toy/nothing", "transfer.source 'toy/nothing' is no task of this run: choose one of auto"),
        ((OLD, OTHER, NEW), OTHER, f"transfer.source '{OTHER}' is no task learnt before {OTHER}: choose one of auto"),
    ],
)
def test_an_unknown_source_is_one_clear_line(
    tasks: tuple[str, ...], source: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *tasks, *flags(), "--run", str(tmp_path / "run"), "--transfer.source", source]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert not (tmp_path / "run").exists()


def test_a_source_that_an_added_task_cannot_have_is_one_clear_line(
    whole: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (whole.path / "config.json").read_bytes()
    for source, complaint in (("toy/slid", "unknown task 'toy/slid'"), (OTHER, "is no task learnt before toy/slide:")):
        assert main(["add", str(whole.path), OTHER, "--transfer.source", source]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert complaint in line
    assert (whole.path / "config.json").read_bytes() == before
