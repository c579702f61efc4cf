"""Measures of one run: hand-computed cases, properties over any scores, and rows that make no sense."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_runs import RUN, SEQUENCE, TOGETHER, Row, one_task, row, write

from ctrlformer.analysis.metrics import (
    Curve,
    RunScores,
    area,
    average_over_tasks,
    common_range,
    evaluation_at,
    forgetting,
    learning_curve,
    mean_forgetting,
    read_run,
    retest_change,
    retest_matrix,
    score_at,
)
from ctrlformer.errors import RunError

quick = settings(max_examples=60, deadline=None)
scores = st.floats(-1e4, 1e4, allow_subnormal=False)
returns = st.floats(0, 1000, allow_subnormal=False)


class TestOneRun:
    @pytest.mark.parametrize(("budget", "score"), [(0, 10), (49, 10), (50, 400), (99, 400), (100, 800), (None, 800)])
    def test_a_score_is_that_of_the_last_evaluation_within_the_budget(self, budget: int | None, score: float) -> None:
        assert score_at(RUN, "a", budget) == score

    def test_no_evaluation_within_the_budget_is_none(self) -> None:
        assert score_at(one_task(1, (10, 5.0), (20, 6.0)), "b", 9) is None
        assert score_at(RUN, "unknown") is None

    @quick
    @given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(0, 110), st.integers(0, 110))
    def test_a_larger_budget_never_takes_an_earlier_evaluation(
        self, frames: list[int], first: int, second: int
    ) -> None:
        run = RunScores.of("run", 1, [row(0, "a", "learn", count, float(count)) for count in frames])
        small, large = (evaluation_at(run, "a", budget) for budget in sorted((first, second)))
        assert small is None or (large is not None and small.frames <= large.frames)
        assert large is None or large.frames == max(count for count in frames if count <= max(first, second))

    def test_the_last_retest_is_compared_with_the_tasks_own_final(self) -> None:
        change = retest_change(RUN, "a")
        assert change == (800.0, 740.0)
        assert (change.difference, change.ratio) == (-60.0, 0.925)
        assert retest_change(RUN, "c") is None
        assert retest_change(RunScores.of("run", 1, SEQUENCE[:2]), "a") is None

    def test_a_ratio_needs_a_positive_score(self) -> None:
        rows = [row(0, "a", "final", 1, 0.0), row(1, "b", "learn", 0, 0.0), row(1, "a", "retest", 1, 5.0)]
        for before, ratio in [(0.0, None), (-1.0, None), (1e-320, None), (10.0, 0.5)]:
            change = retest_change(RunScores.of("run", 1, [rows[0] | {"mean": before}, *rows[1:]]), "a")
            assert change is not None
            assert change.ratio == ratio

    def test_forgetting_is_the_best_score_before_less_the_last_retest(self) -> None:
        assert forgetting(RUN, "a") == 820 - 740  # the retest in the middle of a stage was the best
        assert forgetting(RUN, "b") == 600 - 630
        assert forgetting(RUN, "c") is None
        assert mean_forgetting(RUN) == (80 - 30) / 2
        assert mean_forgetting(TOGETHER) == (100 + 50) / 2

    def test_mean_forgetting_wants_every_old_task(self) -> None:
        assert mean_forgetting(RunScores.of("run", 1, SEQUENCE[:-1])) is None
        assert mean_forgetting(one_task(1, (0, 1.0), (9, 2.0))) is None

    @quick
    @given(returns, st.lists(returns, min_size=1, max_size=6))
    def test_forgetting_is_at_least_the_drop_from_final_to_last(self, final: float, retests: list[float]) -> None:
        later = [row(1, "a", "retest", frames, mean) for frames, mean in enumerate(retests)]
        run = RunScores.of("run", 1, [row(0, "a", "final", 9, final), row(1, "b", "learn", 0, 0.0), *later])
        lost, change = forgetting(run, "a"), retest_change(run, "a")
        assert lost is not None
        assert change is not None
        assert lost >= -change.difference
        assert lost == max(final, *retests) - retests[-1] or retests[-1] == max(final, *retests)

    def test_the_matrix_has_finals_on_its_diagonal_and_retests_after_it(self) -> None:
        expected = [[800, 700, 740], [math.nan, 600, 630], [math.nan, math.nan, 900]]
        np.testing.assert_array_equal(retest_matrix(RUN), expected)
        np.testing.assert_array_equal(retest_matrix(TOGETHER), [[300, 200], [500, 450], [math.nan, 700]])
        np.testing.assert_array_equal(retest_matrix(RunScores.of("run", 1, SEQUENCE[:2])), [[math.nan]])

    def test_the_average_over_tasks_takes_every_tasks_newest_score(self) -> None:
        assert average_over_tasks(RUN) == pytest.approx((740 + 630 + 900) / 3)
        assert average_over_tasks(RunScores.of("run", 1, SEQUENCE[:4])) == (800 + 20) / 2

    def test_the_order_of_rows_in_the_file_does_not_matter(self) -> None:
        backwards = RunScores.of("sequence", 1, SEQUENCE[::-1])
        np.testing.assert_array_equal(retest_matrix(backwards), retest_matrix(RUN))
        assert mean_forgetting(backwards) == mean_forgetting(RUN)

    def test_a_run_is_finished_when_its_last_stage_is(self) -> None:
        assert RUN.finished
        assert not RunScores.of("run", 1, SEQUENCE[:8]).finished


class TestCurves:
    def test_a_curve_takes_the_later_of_two_evaluations_at_one_frame(self) -> None:
        curve = learning_curve(one_task(1, (0, 1.0), (10, 2.0), (10, 3.0), (20, 4.0)), "b", 15)
        assert (curve.frames.tolist(), curve.scores.tolist()) == ([0, 10], [1, 3])

    def test_the_range_that_curves_share(self) -> None:
        rising = Curve(np.array([0.0, 100.0]), np.array([0.0, 500.0]))
        longer = Curve(np.array([50.0, 100.0, 900.0]), np.array([1000.0, 1000.0, 0.0]))
        assert common_range([longer, rising]) == (50.0, 100.0)
        assert common_range([Curve(np.array([100.0, 200.0]), np.array([1.0, 2.0])), rising]) is None
        assert common_range([]) is None

    @quick
    @given(st.data(), st.integers(2, 6))
    def test_the_area_is_that_of_trapezoids(self, data: st.DataObject, count: int) -> None:
        heights = data.draw(st.lists(st.floats(0, 990), min_size=count, max_size=count))
        inner = data.draw(st.lists(st.integers(1, 99), min_size=count - 2, max_size=count - 2, unique=True))
        curve = Curve(np.array([0, *sorted(inner), 100], dtype=float), np.array(heights))
        union = np.union1d(curve.frames, np.arange(0, 101, 7.0))
        union = np.append(union[union < 100], 100)
        expected = np.trapezoid(np.interp(union, curve.frames, curve.scores), union) / 100_000
        assert area(curve, 0.0, 100.0) == pytest.approx(expected)


class TestReading:
    def test_a_run_is_read_whatever_version_its_settings_have(self, tmp_path: Path) -> None:
        run = read_run(write(tmp_path / "run", SEQUENCE))
        assert (run.name, run.seed, run.rows) == (str(tmp_path / "run"), 3, RUN.rows)
        assert read_run(write(tmp_path / "bare", SEQUENCE, config=None)).seed is None
        assert read_run(write(tmp_path / "seedless", SEQUENCE, config="{}")).seed is None

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("stage", None),
            ("stage", -1),
            ("stage", True),
            ("frames", 1.5),
            ("frames", "100"),
            ("frames", 10**30),
            ("task", ""),
            ("task", 7),
            ("task", "two\nlines"),
            ("kind", "exam"),
            ("kind", ["learn"]),
            ("mean", None),
            ("mean", True),
            ("mean", "8" * 10_000),
            ("mean", math.nan),
            ("mean", math.inf),
            ("mean", 10**400),
        ],
    )
    def test_a_malformed_row_is_one_line_with_run_and_field(self, tmp_path: Path, field: str, value: object) -> None:
        folder = write(tmp_path / "run", [SEQUENCE[0], SEQUENCE[1] | {field: value}])
        with pytest.raises(RunError) as caught:
            read_run(folder)
        message = str(caught.value)
        assert message.startswith(f"{folder}, evaluation 2: {field} is ")
        assert "\n" not in message
        assert len(message) < len(str(folder)) + 150

    def test_a_missing_field_is_named(self) -> None:
        for field in SEQUENCE[0]:
            with pytest.raises(RunError, match=f"run, evaluation 1: {field} is None"):
                RunScores.of("run", 1, [{key: value for key, value in SEQUENCE[0].items() if key != field}])

    @pytest.mark.parametrize(
        ("rows", "part"),
        [
            ([row(0, "a", "learn", 0, 1), row(1, "a", "final", 1, 1)], "learnt in stages 0 and 1"),
            ([row(0, "a", "retest", 0, 1)], "retested in stage 0, but not learnt before"),
            ([row(0, "a", "learn", 0, 1), row(0, "a", "retest", 5, 1)], "retested in stage 0, but not learnt before"),
            ([], "no evaluations yet"),
        ],
    )
    def test_stages_that_make_no_sense(self, rows: list[Row], part: str) -> None:
        with pytest.raises(RunError, match=f"run.*{part}"):
            RunScores.of("run", 1, rows)

    def test_folders_that_are_no_runs(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no run folder at"):
            read_run(tmp_path / "absent")
        with pytest.raises(RunError, match="cannot read"):
            read_run(tmp_path / ("x" * 300))
        with pytest.raises(RunError, match="no evaluations yet"):
            read_run(tmp_path)
        with pytest.raises(RunError, match=r"config\.json is not JSON"):
            read_run(write(tmp_path / "broken", SEQUENCE, config="{"))
        with pytest.raises(RunError, match="seed is 'one'"):
            read_run(write(tmp_path / "worded", SEQUENCE, config='{"seed": "one"}'))
        linked = write(tmp_path / "linked", SEQUENCE, config=None)
        (linked / "config.json").symlink_to("/etc/hostname")
        with pytest.raises(RunError, match="cannot read"):
            read_run(linked)

    def test_neither_reading_nor_measuring_needs_torch(self) -> None:
        code = "import sys, ctrlformer.cli.scores; print('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"
