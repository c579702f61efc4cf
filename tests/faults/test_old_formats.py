"""Runs of earlier versions: they load, or one line says what they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broken_runs import StopAt, go_on, stop
from small_runs import assert_same, outcome
from tally import Tally

from ctrlformer.cli.main import main
from ctrlformer.config import ADDED_LATER
from ctrlformer.errors import CheckpointError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.files import to_json
from ctrlformer.training import launch

pytestmark = [pytest.mark.fault("old_format"), pytest.mark.usefixtures("quick_trainings")]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    stop(tmp_path / "run", StopAt(step=8))
    return tmp_path / "run"


def test_a_config_from_before_a_setting_was_added_resumes_exactly(
    stopped: Path, tally: Tally, expected: dict[str, Any]
) -> None:
    """All of them are left out; only what the small training sets to another value has to stay."""
    with tally.case("settings added later"):
        config = json.loads((stopped / "config.json").read_text())
        for name in sorted(ADDED_LATER - {"config.agent.update_every"}, key=len, reverse=True):  # the inner ones first
            if "[]" in name:  # of added stages, of which there are none
                continue
            *sections, field = name.split(".")[1:]
            section = config
            for inner in sections:
                section = section[inner]
            del section[field]
        (stopped / "config.json").write_text(json.dumps(config))
        assert_same(outcome(go_on(stopped)), expected)


@pytest.mark.parametrize("number", [0, 1, checkpoint.FORMAT + 1, 99])
def test_a_checkpoint_of_another_format_names_it_and_stays(
    number: int, stopped: Path, tally: Tally, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests = list((stopped / "checkpoints").glob("*/manifest.json"))
    for path in manifests:
        path.write_bytes(to_json(json.loads(path.read_text()) | {"format": number}))
    with tally.case(f"format {number}"):
        assert main(["resume", str(stopped)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"has format {number}: use the version that wrote it" in error
        assert f"this one reads {checkpoint.FORMAT}" in error
        assert all(path.exists() for path in manifests)
        with pytest.raises(CheckpointError, match=f"has format {number}"):
            checkpoint.load(stopped / "checkpoints", warn=lambda _: None)


def test_a_replay_of_another_format_is_named(stopped: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrlformer.replay.buffer.FORMAT", 2)
    with tally.case("replay format 1"), pytest.raises(CheckpointError, match=r"has format 1.* reads 2"):
        launch.resume(stopped)
