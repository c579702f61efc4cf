"""Continual World's figures, each against numbers worked out by hand."""

from __future__ import annotations

import pytest
from scored_runs import RUN, SEQUENCE, TOGETHER, one_task

from ctrlformer.analysis.continual_world import (
    continual_world,
    performance,
    sequence_forgetting,
    sequence_transfer,
)
from ctrlformer.analysis.metrics import RunScores, forgetting

SCRATCH = [
    one_task(1, (0, 0.0), (100, 400.0), task="b"),  # areas 0.2 and 0.4: 0.3
    one_task(2, (0, 0.0), (100, 800.0), task="b"),
    one_task(1, (0, 0.0), (200, 500.0), task="c"),  # 0.25
]


def test_performance_is_the_mean_at_the_end() -> None:
    assert performance(RUN) == pytest.approx((740 + 630 + 900) / 3 / 1000)
    assert performance(RUN, maximum=2000) == pytest.approx((740 + 630 + 900) / 3 / 2000)


def test_forgetting_is_measured_from_the_end_of_the_own_stage() -> None:
    """a: 800 to 740, although a retest had 820; b: 600 to 630, gained; c: nothing yet."""
    assert sequence_forgetting(RUN) == pytest.approx((60 - 30 + 0) / 3 / 1000)
    assert forgetting(RUN, "a") == 80, "the other measure of forgetting, from the best score on the way"


def test_forward_transfer_averages_over_tasks_with_scratch_averaged_first() -> None:
    b, c = (0.31 - 0.3) / 0.7, (0.45 - 0.25) / 0.75
    assert sequence_transfer(RUN, SCRATCH) == pytest.approx((0 + b + c) / 3)
    assert sequence_transfer(RUN, SCRATCH[:2]) is None, "nothing to compare c with"


def test_over_runs_with_intervals() -> None:
    better = RunScores.of("better", 2, [row | {"mean": row["mean"] + 20.0} for row in SEQUENCE])
    found = continual_world([RUN, better, TOGETHER], SCRATCH)
    assert found is not None
    assert list(found.figures) == ["performance", "forgetting", "forward transfer"]
    alone = continual_world([RUN, better])
    assert alone is not None
    assert list(alone.figures) == ["performance", "forgetting"]
    figure = alone.figures["performance"]
    assert (figure.runs, figure.mean) == (2, pytest.approx(((740 + 630 + 900) / 3 + 10) / 1000))
    assert figure.mean_interval is not None


def test_a_run_on_its_way_has_no_figures() -> None:
    assert continual_world([RunScores.of("early", 1, SEQUENCE[:8])]) is None
    assert continual_world([one_task(1, (0, 0.0), (100, 1.0))]) is None
    unretested = RunScores.of("unretested", 1, [row for row in SEQUENCE if row["kind"] != "retest"])
    assert performance(unretested) is None
    assert sequence_forgetting(unretested) is None
