"""Untrusted run folders: nothing in them is executed, and nothing outside them is written."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import TimeoutExpired, carry_out, limits
from payloads import MODULE, PAYLOADS, mark_of
from tally import HowMany, Tally

import ctrlformer
from ctrlformer.cli import commands as subcommands
from ctrlformer.cli.arguments import Command
from ctrlformer.errors import CtrlFormerError
from ctrlformer.storage import run_folder
from ctrlformer.storage.run_folder import RunFolder

COMMANDS: dict[str, Callable[[Path], Command]] = {
    "report": lambda run: subcommands.Report((run,)),
    "scores": lambda run: subcommands.Scores((run,)),
    "eval": lambda run: subcommands.Eval(run, episodes=1, task="toy/reach"),
    "resume": lambda run: subcommands.Resume(run),
}
OF_A_FINISHED_RUN: dict[str, Callable[[Path], Command]] = {
    "film": lambda run: subcommands.Eval(run, episodes=1, task="toy/reach", video=True),
    "add": lambda run: subcommands.Add(run, "toy/reach_sparse", frames=4),
    "add into a copy": lambda run: subcommands.Add(run, "toy/reach_sparse", frames=4, into=run.parent / "copy"),
    "explain": lambda run: subcommands.Explain(run, task="toy/reach"),
}
QUICK = [
    "pickle as newest/encoder.safetensors",
    f"task gym/{MODULE}:Task-v0",
    "link as checkpoints",
    "link as videos/toy-reach.mp4",
    "link to a folder as tensorboard",
    "second name of .tmp-report.html",
    "pipe as newest/manifest.json",
    "networks of terabytes",
]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that no payload may change, and a module that nothing may import."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / f"{MODULE}.py").write_text(f"import os; os.mkdir({str(mark_of(tmp_path / 'outside'))!r})\n")
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setattr(run_folder, "source_commit", lambda: None)  # starts git, which has nothing to do with it
    return tmp_path / "outside"


@pytest.mark.fault("hostile")
def test_commands_on_hostile_runs(
    stopped: RunFolder, outside: Path, tally: Tally, how_many: HowMany, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in chosen(how_many, len(QUICK)):
        with tally.case(name):
            for command in COMMANDS:
                with untouched(stopped, outside, name, command):
                    run_command(monkeypatch, COMMANDS[command], outside.parent / "run")


@pytest.mark.fault("hostile")
def test_commands_on_hostile_finished_runs(
    finished: RunFolder, outside: Path, tally: Tally, how_many: HowMany, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [name for name in PAYLOADS if name.startswith(("link", "second name"))]  # what writing could follow
    for name in links[-how_many(1, len(links)) :]:
        with tally.case(f"finished, {name}"):
            for command in how_many_of(how_many, OF_A_FINISHED_RUN):
                with untouched(finished, outside, name, command):
                    run_command(monkeypatch, OF_A_FINISHED_RUN[command], outside.parent / "run")


@pytest.mark.fault("hostile")
def test_loading_hostile_runs_in_python(stopped: RunFolder, outside: Path, tally: Tally, how_many: HowMany) -> None:
    for name in chosen(how_many, len(QUICK)):
        with (
            tally.case(f"load, {name}"),
            untouched(stopped, outside, name, "load"),
            warnings.catch_warnings(),
            contextlib.suppress(CtrlFormerError),
        ):
            warnings.simplefilter("ignore")
            with limits():
                ctrlformer.load(outside.parent / "run")


def chosen(how_many: HowMany, quick: int) -> list[str]:
    names = [*QUICK, *(name for name in PAYLOADS if name not in QUICK)]
    return names[: how_many(quick, len(names))]


def how_many_of(how_many: HowMany, commands: dict[str, Callable[[Path], Command]]) -> list[str]:
    return [*commands][: how_many(1, len(commands))]


@contextlib.contextmanager
def untouched(sound: RunFolder, outside: Path, payload: str, command: str) -> Iterator[None]:
    """A copy of the run with the payload in it, which must not reach out of its folder while the `with` lasts."""
    prepare(sound.path, outside, payload)
    before = snapshot(outside)
    yield
    assert snapshot(outside) == before, f"{command} wrote outside the run"
    assert not mark_of(outside).exists(), f"{command} ran what was in the run"
    assert MODULE not in sys.modules, f"{command} imported what the run names"


def prepare(sound: Path, outside: Path, payload: str) -> None:
    for folder in (outside, outside.parent / "run", outside.parent / "copy", mark_of(outside)):
        shutil.rmtree(folder, ignore_errors=True)
    sys.modules.pop(MODULE, None)
    shutil.copytree(sound, outside.parent / "run")
    outside.mkdir()
    for name in ("precious", "precious.png", "precious.json"):
        (outside / name).write_bytes(b"precious")
    PAYLOADS[payload](outside.parent / "run", outside)


def snapshot(folder: Path) -> dict[str, object]:
    """Everything in it: names, kinds and bytes."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        small = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30
        found[str(path.relative_to(folder))] = (kind, path.read_bytes() if small else path.lstat().st_size)
    return found


def run_command(monkeypatch: pytest.MonkeyPatch, command: Callable[[Path], Command], run: Path) -> None:
    before = os.getcwd()
    os.chdir(run.parent)
    try:
        carry_out(monkeypatch, command(run))
    except TimeoutExpired as error:
        raise AssertionError(f"{error}") from None
    finally:
        os.chdir(before)
