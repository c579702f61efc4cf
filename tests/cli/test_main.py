"""The command line: quick help, one line for every mistake, the right exit codes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
from small_runs import start

import ctrlformer
from ctrlformer.cli.commands import COMMANDS
from ctrlformer.cli.main import main
from ctrlformer.config.presets import preset
from ctrlformer.storage.run_folder import RunFolder

HEAVY = ("torch", "numpy", "dm_control", "mujoco", "gymnasium", "matplotlib", "numba", "triton")


def heavy_imports(statement: str) -> list[str]:
    """Which heavy modules a fresh Python has loaded after the statement."""
    code = f"""
import contextlib, io, sys
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    {statement}
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_imports_nothing_heavy(command: str | None) -> None:
    arguments = [command, "--help"] if command else ["--help"]
    assert heavy_imports(f"from ctrlformer.cli.main import main; main({arguments!r})") == []


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert heavy_imports("import ctrlformer; ctrlformer.CtrlFormerError") == []


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ctrlformer {ctrlformer.__version__}\n"


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["trian"], "did you mean 'train'"),
        (["train"], "name at least one"),
        (["train", "cartpole_swingpu"], "cartpole_swingup"),
        (["train", "toy/reach", "--preset", "tinny"], "did you mean 'tiny'"),
        (["train", "toy/reach", "--preset=tinny"], "did you mean 'tiny'"),
        (["train", "toy/reach", "toy-reach/../reach"], "toy"),
        (["train", "toy/reach", "--agent.discount", "1.5"], "agent.discount is 1.5"),
        (["train", "toy/reach", "--preset", "compact_vit", "--encoder.dim", "65"], "encoder.dim 65"),
        (["train", "toy/reach", "--frames", "0"], "training.frames is 0"),
        (["train", "toy/reach", "--seed", "-1"], "seed -1"),
        (["train", "toy/reach", "--training.device", "abacus"], "abacus"),
        (["train", "toy/reach", "--run", "/proc/nowhere/run"], "/proc/nowhere/run"),
        (["resume", "nowhere"], "nowhere"),
        (["resume", "."], "not a run folder"),
        (["eval", "nowhere"], "nowhere"),
        (["presets", "--diff", "paper", "papre"], "did you mean 'paper'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert part in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_wandb_without_its_package_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "toy/reach", "--run", str(tmp_path / "run"), "--wandb"]) == 2
    assert "ctrlformer[wandb]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train", "toy/reach", "--agent.discuont", "0.9"], "--agent.discount"),
        (["train", "toy/reach", "--agent.discount", "high"], "'high'"),
        (["train", "toy/reach", "--encoder.kind", "rnn"], "'ctrlformer', 'places'"),
        (["eval"], "RUN"),
        (["tasks", "extra"], "extra"),
    ],
)
def test_an_argument_that_cannot_be_read_is_one_line_and_exit_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line
    assert line.endswith(f"(see ctrlformer {arguments[0]} --help)")


def test_train_takes_its_defaults_from_the_preset_and_any_flag_over_them(tmp_path: Path) -> None:
    words = [*small_runs.flags(), "--agent.discount", "0.5", "--frames", "20", "--seed", "7", "--precision", "bf16"]
    assert main(["train", "toy/reach", "--run", str(tmp_path / "run"), *words]) == 0
    config = RunFolder.open(tmp_path / "run").config
    assert config.preset == "tiny"
    assert config.encoder == preset("tiny").encoder
    assert config.agent.discount == 0.5
    assert config.training.frames == 20
    assert config.training.precision == "bf16"
    assert config.seed == 7


def test_without_a_folder_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["train", "toy/reach", *small_runs.flags(), "--frames", "4"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["toy-reach-tiny-seed1", "toy-reach-tiny-seed1-2"]


def test_eval_prints_a_score_and_films(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start(tmp_path / "run", small_runs.small_config(training__frames=4))
    assert main(["eval", str(run.path), "--episodes", "2", "--video"]) == 0
    assert "toy/reach: " in capsys.readouterr().out
    assert (run.videos / "toy-reach.mp4").stat().st_size > 1000
    assert main(["eval", str(run.path), "--task", "cartpole_swingup"]) == 2
    assert main(["eval", str(run.path), "--episodes", "0"]) == 2


def test_resume_of_a_folder_that_exists_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start(tmp_path / "run", small_runs.small_config(training__frames=4))
    assert main(["train", "toy/reach", *small_runs.flags(), "--run", str(run.path)]) == 2
    assert "resume" in capsys.readouterr().err
    assert main(["resume", str(run.path)]) == 0


def test_tasks_and_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert "cartpole_swingup\n" in capsys.readouterr().out
    assert main(["presets", "--diff", "paper", "official"]) == 0
    table = capsys.readouterr().out
    assert "encoder.pooling" in table
    assert "agent.batch_size" not in table  # they agree in it


def test_a_message_is_one_printable_line_whatever_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path / "a\nb\x1b[2J")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert "a\\nb\\x1b[2J" in line
    assert main(["train", "x" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 2000


def test_modules_are_imported_for_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_trusted_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["eval", str(tmp_path / "absent"), "--import", "a_trusted_module"]) == 2
    assert "a_trusted_module" in sys.modules
    assert main(["eval", str(tmp_path / "absent"), "--import", "no_such_module"]) == 2
    assert "--import no_such_module: No module named" in capsys.readouterr().err
