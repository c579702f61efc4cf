"""Thousands of files that are almost sound, given to the real commands: they work, or say in one line why not."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import TimeoutExpired, carry_out, without_learning
from mutations import mutated_json, mutated_rows, mutated_tensors, reseal
from tally import HowMany, Tally

from ctrlformer.cli import commands as subcommands
from ctrlformer.cli.arguments import Command
from ctrlformer.storage.run_folder import RunFolder

Mutation = Callable[[random.Random, bytes], bytes]
QUICK = 4  # cases of each kind in a quick check


class Target(NamedTuple):
    """A file of a run, how it is changed, and which command then reads it."""

    file: str  # a pattern; `newest/` is the newest checkpoint
    mutation: Mutation
    command: Callable[[Path], Command]
    cases: int
    sealed: bool = False
    """Whether the sums that vouch for the file are made anew, so that the change gets past them."""


def report(run: Path) -> Command:
    return subcommands.Report((run,), run.parent / "page.html")


def scores(run: Path) -> Command:
    return subcommands.Scores((run,), json=run.parent / "scores.json")


def evaluate(run: Path) -> Command:
    return subcommands.Eval(run, episodes=1)


def resume(run: Path) -> Command:
    return subcommands.Resume(run)


def add(run: Path) -> Command:
    return subcommands.Add(run, "toy/reach_sparse", frames=4)


def explain(run: Path) -> Command:
    return subcommands.Explain(run)


STOPPED = [
    Target("evals.jsonl", mutated_rows, report, 1500),
    Target("metrics.jsonl", mutated_rows, report, 800),
    Target("environment.json", mutated_json, report, 400),
    Target("config.json", mutated_json, report, 700),
    Target("explain/explain.json", mutated_json, report, 700),
    Target("evals.jsonl", mutated_rows, scores, 2000),
    Target("config.json", mutated_json, scores, 300),
    Target("newest/manifest.json", mutated_json, evaluate, 200),
    Target("newest/trainer.json", mutated_json, evaluate, 600, sealed=True),
    Target("newest/*.safetensors", mutated_tensors, evaluate, 400, sealed=True),
    Target("config.json", mutated_json, evaluate, 300),
    Target("newest/manifest.json", mutated_json, resume, 200),
    Target("newest/trainer.json", mutated_json, resume, 700, sealed=True),
    Target("newest/*.safetensors", mutated_tensors, resume, 300, sealed=True),
    Target("config.json", mutated_json, resume, 200),
    Target("environment.json", mutated_json, resume, 50),
    Target("metrics.jsonl", mutated_rows, resume, 50),
    Target("kept/*.safetensors", mutated_tensors, resume, 100, sealed=True),
    Target("replay/*/*.seg", lambda rng, data: mutated_bytes_of(rng, data), resume, 50),
    Target("lock", lambda rng, data: rng.randbytes(rng.randrange(200)), resume, 20),
]
FINISHED = [
    Target("newest/trainer.json", mutated_json, add, 200, sealed=True),
    Target("config.json", mutated_json, add, 130),
    Target("encoders/*.safetensors", mutated_tensors, explain, 50),
    Target("kept/*.safetensors", mutated_tensors, explain, 50, sealed=True),
]


def mutated_bytes_of(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place + 1 :]


def named(target: Target) -> str:
    return f"{target.command.__name__}-{target.file.replace('/', ':')}"


@pytest.mark.fault("fuzz")
@pytest.mark.parametrize("target", STOPPED, ids=named)
def test_fuzzed_files_of_a_stopped_run(
    stopped: RunFolder, tally: Tally, how_many: HowMany, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    fuzz(stopped, tally, how_many, tmp_path, monkeypatch, target)


@pytest.mark.fault("fuzz")
@pytest.mark.parametrize("target", FINISHED, ids=named)
def test_fuzzed_files_of_a_finished_run(
    finished: RunFolder,
    tally: Tally,
    how_many: HowMany,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
) -> None:
    fuzz(finished, tally, how_many, tmp_path, monkeypatch, target)


def fuzz(
    run: RunFolder, tally: Tally, how_many: HowMany, folder: Path, monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    """Every case begins from the sound run, and is told by its number alone."""
    without_learning(monkeypatch)
    changes_the_run = target.command in (resume, add)
    work = folder / "run"
    shutil.copytree(run.path, work)
    refused = 0
    for case in range(how_many(QUICK if target.command is not explain else 2, target.cases)):
        rng = random.Random(f"{named(target)} {case}")
        if changes_the_run and case:
            shutil.rmtree(work)
            shutil.copytree(run.path, work)
        file = rng.choice(sorted(work.glob(target.file.replace("newest", f"checkpoints/{newest(work)}"))))
        sound = file.read_bytes()
        file.write_bytes(target.mutation(rng, sound))
        seals = seal(work, file) if target.sealed else {}
        with tally.case(f"{named(target)}, case {case}"):
            try:
                refused += carry_out(monkeypatch, target.command(work)).code == 2
            except TimeoutExpired as error:
                raise AssertionError(f"{error}") from None
        for path, data in {**seals, file: sound}.items():
            if path.parent.exists():
                path.write_bytes(data)
    tally.figures["refused, where the others worked all the same"] = refused


def newest(run: Path) -> str:
    return (run / "checkpoints" / "last").read_text().strip()


def seal(run: Path, file: Path) -> dict[Path, bytes]:
    """Make the sums right again; answers with what the changed files held before."""
    checkpoint = run / "checkpoints" / newest(run)
    before = {path: path.read_bytes() for path in (checkpoint / "trainer.json", checkpoint / "manifest.json")}
    if file.parent.name == "kept":
        trainer = json.loads(before[checkpoint / "trainer.json"])
        task = file.stem.replace("+", "/")
        if task in trainer["kept"]:
            trainer["kept"][task] = hashlib.sha256(file.read_bytes()).hexdigest()
        (checkpoint / "trainer.json").write_text(json.dumps(trainer))
    reseal(checkpoint)
    before.pop(file, None)
    return before
