"""Run folders written before the source was rearranged still load, in every command that takes a run folder.

tests/data/old_runs.tar.gz was written by commit 92fd312: `finished` has learnt toy/reach and then toy/slide with preset
tiny at 12 pixels, `stopped` was interrupted in the middle of an episode of toy/reach.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import ctrlformer
from ctrlformer.cli.main import main
from ctrlformer.storage.run_folder import RunFolder

ARCHIVE = Path(__file__).parent / "data" / "old_runs.tar.gz"


@pytest.fixture
def old_runs(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_eval_scores_an_old_run_as_it_was_scored_then(old_runs: Path) -> None:
    """The same seed plays the same episodes: the last rows of its log are a final evaluation and a retest."""
    logged = {row["task"]: row["returns"] for row in RunFolder.open(old_runs / "finished").read_evals()[-2:]}
    found = {score.task: score.returns for score in ctrlformer.evaluate(old_runs / "finished", episodes=1)}
    assert found.keys() == logged.keys()
    for task, returns in logged.items():
        assert found[task] == pytest.approx(returns, rel=1e-3)


def test_resume_ends_an_old_run_that_was_interrupted(old_runs: Path) -> None:
    before = RunFolder.open(old_runs / "stopped").read_evals()
    run = ctrlformer.resume(old_runs / "stopped", quiet=True)
    rows = run.read_evals()
    assert rows[: len(before)] == before
    assert [(row["frames"], row["kind"]) for row in rows] == [(0, "learn"), (20, "learn"), (40, "final")]


def test_add_learns_one_more_task_on_an_old_run(old_runs: Path) -> None:
    run = ctrlformer.add(
        old_runs / "finished",
        "toy/reach_sparse",
        frames=24,
        overrides={"transfer.protect": "rehearse"},
        quiet=True,
    )
    assert [(row["task"], row["kind"]) for row in run.read_evals()[-3:]] == [
        ("toy/reach_sparse", "final"),
        ("toy/reach", "retest"),
        ("toy/slide", "retest"),
    ]


@pytest.mark.parametrize("command", ["scores", "report", "explain"])
def test_old_runs_are_read(command: str, old_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(old_runs / "finished")]) == 0
    shown = capsys.readouterr().out
    if command == "scores":
        assert "retest / final" in shown
    else:
        assert Path(shown.splitlines()[-1]).exists()


def test_an_old_run_that_was_interrupted_is_reported(old_runs: Path) -> None:
    assert (
        main(["report", str(old_runs / "stopped"), str(old_runs / "finished"), "--out", str(old_runs / "all.html")])
        == 0
    )
    assert "toy/slide" in (old_runs / "all.html").read_text()
