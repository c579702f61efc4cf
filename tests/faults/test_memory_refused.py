"""A replay or a batch that memory cannot hold is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_runs import StopAt, broken_config, go_on, start, stop
from small_runs import assert_same, outcome
from tally import Tally

from ctrlformer.cli.main import main
from ctrlformer.errors import ConfigError
from ctrlformer.system.memory import free_memory
from ctrlformer.training import launch, memory_check

pytestmark = [pytest.mark.fault("memory_refused"), pytest.mark.usefixtures("quick_trainings")]

TOO_LARGE = {
    "replay that this training would fill": (
        ["--training.replay-capacity", "1_000_000_000", "--training.frames", "10_000_000_000"],
        "--training.replay-capacity",
    ),
    "replay that it would not fill": (
        ["--training.replay-capacity", "1_000_000_000_000"],
        "--training.replay-capacity",
    ),
    "pictures": (
        [
            "--env.image-size",
            "1_008",
            "--training.frames",
            "10_000_000_000",
            "--training.replay-capacity",
            "10_000_000",
        ],
        "--training.replay-capacity",
    ),
    "batch": (["--agent.batch-size", "1_000_000", "--env.image-size", "1_008"], "--agent.batch-size"),
    "batches of a step": (
        ["--agent.updates-per-step", "1_000", "--agent.batch-size", "1_000_000"],
        "--agent.batch-size",
    ),
    "what an update remembers": (["--preset", "paper", "--agent.batch-size", "10_000"], "--agent.batch-size"),
    "sequences": (["--preset", "dreamer", "--agent.batch-size", "1_000_000"], "--agent.batch-size"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_command_refuses_with_the_size_and_the_setting(
    name: str, tally: Tally, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, setting = TOO_LARGE[name]
    with tally.case(name):
        words = [word.replace("_", "") if word[0].isdigit() else word for word in flags]
        preset = [] if "--preset" in flags else ["--preset", "tiny"]
        assert main(["train", "toy/reach", *preset, *words, "--run", str(tmp_path / "run")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "GB" in error
        assert f"lower {setting}" in error
        assert not (tmp_path / "run").exists()


def test_a_run_that_comes_to_a_smaller_machine_is_refused_and_stays_as_it_is(tally: Tally, tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    stop(tmp_path / "run", StopAt(step=14))
    ways = {
        "resume": (tmp_path / "run", lambda: launch.resume(tmp_path / "run")),
        "add": (whole.path, lambda: launch.add(whole.path, "toy/reach_sparse")),
    }
    for what, (fails, go) in ways.items():
        with tally.case(what), pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory_check, "free_memory", lambda: 10_000)
            before = sorted(path.stat().st_mtime_ns for path in fails.rglob("*"))
            with pytest.raises(ConfigError, match=r"0\.00 GB are free"):
                go()
            assert sorted(path.stat().st_mtime_ns for path in fails.rglob("*")) == before
    with tally.case("resume with memory again"):
        assert_same(outcome(go_on(tmp_path / "run")), outcome(whole))


def test_a_limit_is_found_and_a_training_that_fits_is_let_in(tally: Tally, tmp_path: Path) -> None:
    with tally.case("fits"):
        assert (free_memory() or 0) > 0
        start(tmp_path / "run", broken_config("toy/slide", training__frames=20))
