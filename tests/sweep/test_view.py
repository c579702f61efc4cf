"""All runs in one view, read from their folders while others write them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ctrlformer.paper.experiments import EXPERIMENTS, SCALES
from ctrlformer.paper.plan import RUNS, Choice, make_plan
from ctrlformer.sweep import view
from ctrlformer.sweep.schedule import Status
from ctrlformer.sweep.view import SweepView, last_row

PLAN = make_plan(Choice(EXPERIMENTS["contrastive_on_baselines"], SCALES["smoke"], methods=["ctrlformer"]))
FIRST, TRANSFER = PLAN.runs


def test_the_last_whole_row_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    assert last_row(log) is None
    for text, row in [("", None), ('{"a": 1}\n{"a": 2}\n{"a"', {"a": 2}), ("nonsense\n", None), ("[1]\n", None)]:
        log.write_text(text)
        assert last_row(log) == row
    log.write_text('{"a": 1}\n' * 10_000 + '{"a": 2}\n')
    assert last_row(log) == {"a": 2}


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_shown(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PLAIN_SECONDS", 0.0)
    monkeypatch.setattr(view, "LIVE_SECONDS", 0.0)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=200, highlight=False)
    with SweepView(PLAN.runs, tmp_path, console, {FIRST: "finished", TRANSFER: "new"}) as watching:
        watching.changed(TRANSFER, Status("running", attempts=2))
        watching.refresh()
        folder = tmp_path / RUNS / TRANSFER
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"stage": 1, "task": "toy/slide", "frames": 40}\n')
        (folder / "evals.jsonl").write_text('{"stage": 1, "kind": "learn", "mean": 12.34}\n')
        watching.refresh()
        watching.changed(TRANSFER, Status("failed", "no room"))
    said = shown.getvalue()
    assert f"[1/2] resumed: {TRANSFER}" in said
    assert "queued or beginning" in said
    assert "toy/slide 40 of 60 frames, learn 12.3" in said
    assert f"[1/2] failed: {TRANSFER}: no room" in said
