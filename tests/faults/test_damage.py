"""A newest checkpoint, or its replay, that a disk has damaged: seen, named, and the one before used."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from commands import carry_out, make_run, without_learning
from tally import HowMany, Tally

from ctrlformer.cli import commands as subcommands
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder

TASK = "toy/slide"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("damage") / "stopped")


def damaged(rng: random.Random, whole: bytes, start: int = 0) -> bytes:
    """One bit flipped from byte `start` on, or cut off there, or something added."""
    place, kind = rng.randrange(start, len(whole)), rng.randrange(8)
    if kind < 4:
        return whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :]
    return whole[:place] if kind < 7 else whole + rng.choice([b" ", b"\n", b"\0"])


@pytest.mark.fault("damage")
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_used(
    stopped: RunFolder, tally: Tally, how_many: HowMany
) -> None:
    before, newest = sorted(candidate.path for candidate in checkpoint.candidates(stopped.checkpoints))
    sound = checkpoint.load(stopped.checkpoints, warn=pytest.fail)
    assert sound.path == newest
    files = sorted(newest.iterdir())
    for case in range(how_many(100, 1000)):
        rng = random.Random(case)
        file = rng.choice(files)
        whole = file.read_bytes()
        file.write_bytes(damaged(rng, whole))
        with tally.case(f"{file.name}, case {case}"):
            said: list[str] = []
            assert checkpoint.load(stopped.checkpoints, warn=said.append).path == before
            assert len(said) == 1
            assert str(newest) in said[0]
            assert file.name in said[0] or file.name == "manifest.json"  # its damage may lie in a name that it gives
        file.write_bytes(whole)
    assert checkpoint.load(stopped.checkpoints, warn=pytest.fail).path == newest


@pytest.mark.fault("damage")
def test_resume_goes_on_from_the_checkpoint_before(
    stopped: RunFolder, tally: Tally, how_many: HowMany, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_learning(monkeypatch)
    for case in range(how_many(3, 60)):
        rng = random.Random(case)
        work = fresh(stopped, tmp_path)
        file = rng.choice(sorted((work / "checkpoints" / newest_of(work)).iterdir()))
        file.write_bytes(damaged(rng, file.read_bytes()))
        with tally.case(f"resume, {file.name}, case {case}"):
            outcome = carry_out(monkeypatch, subcommands.Resume(work))
            assert outcome.code is None  # it would go on
            assert f"{file.parent}" in outcome.shown
            assert "trying the checkpoint before it" in outcome.shown


@pytest.mark.fault("damage")
def test_a_damaged_replay_is_named(
    stopped: RunFolder, tally: Tally, how_many: HowMany, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the newest checkpoint needs the damaged record, the one before is used; else there is none to use."""
    without_learning(monkeypatch)
    newest, before = checkpoint.candidates(stopped.checkpoints)
    shared, whole = (one.state["trainer"]["lanes"][TASK]["replay"]["frames"] for one in (before, newest))
    assert 0 < shared < whole
    for case in range(how_many(4, 300)):
        rng = random.Random(case)
        work = fresh(stopped, tmp_path)
        (file,) = (work / "replay" / TASK.replace("/", "+")).glob("*.seg")
        data = file.read_bytes()
        assert len(data) % whole == 0
        only_newest = case % 2 == 0
        data_start, data_end = (shared, whole) if only_newest else (0, shared)
        stride = len(data) // whole
        place = rng.randrange(data_start * stride, data_end * stride)
        cut = rng.random() < 0.4
        file.write_bytes(data[:place] if cut else data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with tally.case(f"replay, byte {place}, case {case}"):
            outcome = carry_out(monkeypatch, subcommands.Resume(work))
            assert f"replay file {file} is damaged" in outcome.shown
            assert outcome.code == (None if only_newest else 2)


def newest_of(run: Path) -> str:
    return (run / "checkpoints" / "last").read_text().strip()


def fresh(run: RunFolder, folder: Path) -> Path:
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.copytree(run.path, folder / "run")
    return folder / "run"
