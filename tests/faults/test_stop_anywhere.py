"""A training stopped at any step, in any evaluation and any number of times ends in the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from broken_runs import LENGTHY, REPEAT, STEPS, TASKS, StopAt, broken_config, evenly, go_on, start, stop
from small_runs import assert_same, outcome
from tally import HowMany, Tally

from ctrlformer.storage.run_folder import RunFolder

pytestmark = [pytest.mark.fault("resume"), pytest.mark.usefixtures("quick_trainings")]


def test_resume_at_every_step_is_exact(tally: Tally, how_many: HowMany, tmp_path: Path) -> None:
    """One run is stopped at every step and goes on; at every stop a copy of it goes on to the end."""
    steps = how_many(2 * STEPS, 200)
    config = broken_config(**(LENGTHY if steps == 200 else {}))
    expected = outcome(start(tmp_path / "whole", config))
    chained, copy = tmp_path / "chained", tmp_path / "copy"
    stops = evenly(range(1, steps + 1), how_many(5, steps))
    for step in stops:
        with tally.case(f"step {step}"):
            stop(chained, StopAt(step=step), config)
            shutil.copytree(chained, copy)
            assert_same(outcome(go_on(copy)), expected)
        shutil.rmtree(copy, ignore_errors=True)
    with tally.case(f"{len(stops)} stops in a chain"):
        assert_same(outcome(go_on(chained)), expected)
    tally.figures["longest chain of resumes"] = len(stops)


def test_resume_in_an_evaluation_or_retest_is_exact(tally: Tally, how_many: HowMany, tmp_path: Path) -> None:
    """The third stage retests two tasks: stopped in the second, it does not repeat the first."""
    config = broken_config(*TASKS, training__frames=4 * REPEAT)
    whole = start(tmp_path / "whole", config)
    expected = outcome(whole)
    kinds = [row["kind"] for row in whole.read_evals()]
    assert kinds[-2:] == ["retest", "retest"]
    for number in reversed(evenly(range(len(kinds)), how_many(3, 1000))):
        with tally.case(f"evaluation {number}, {kinds[number]}"):
            folder = tmp_path / f"{number}"
            stop(folder, StopAt(evaluation=number), config)
            assert len(RunFolder.open(folder).read_evals()) == number
            assert_same(outcome(go_on(folder)), expected)
