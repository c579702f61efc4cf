"""Measures over runs: hand-computed cases, properties over any scores, and rows that make no sense."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlformer.bootstrap import Interval, SeedScore, Statistic, compare, iqm
from ctrlformer.errors import ConfigError, RunError
from ctrlformer.measures import (
    Curve,
    RunScores,
    area,
    average_over_tasks,
    common_range,
    difference,
    evaluation_at,
    forgetting,
    forward_transfer,
    learning_curve,
    mean_forgetting,
    normalised_gain,
    percent_of_scratch,
    read_run,
    retest_change,
    retest_matrix,
    retest_matrix_markdown,
    score_at,
    transfer_benefit,
)
from ctrlformer.scores_command import as_table, main, summarise

Row = dict[str, Any]

quick = settings(max_examples=60, deadline=None)
scores = st.floats(-1e4, 1e4, allow_subnormal=False)
returns = st.floats(0, 1000, allow_subnormal=False)
groups = st.lists(scores, min_size=1, max_size=12)
seeds_of = st.lists(scores, min_size=2, max_size=8)


def row(stage: int, task: str, kind: str, frames: int, mean: float) -> Row:
    return {"stage": stage, "task": task, "kind": kind, "frames": frames, "mean": mean}


def one_task(seed: int, *points: tuple[int, float], task: str = "b") -> RunScores:
    """A run that learns one task from scratch; its last point is the final evaluation."""
    rows = [row(0, task, "learn", frames, mean) for frames, mean in points]
    return RunScores.of(f"scratch{seed}", seed, [*rows[:-1], rows[-1] | {"kind": "final"}])


SEQUENCE = [
    row(0, "a", "learn", 0, 10.0),
    row(0, "a", "learn", 50, 400.0),
    row(0, "a", "final", 100, 800.0),
    row(1, "b", "learn", 0, 20.0),
    row(1, "a", "retest", 50, 820.0),
    row(1, "b", "final", 100, 600.0),
    row(1, "a", "retest", 100, 700.0),
    row(2, "c", "learn", 0, 0.0),
    row(2, "c", "final", 200, 900.0),
    row(2, "a", "retest", 200, 740.0),
    row(2, "b", "retest", 200, 630.0),
]
RUN = RunScores.of("sequence", 1, SEQUENCE)
TOGETHER = RunScores.of(
    "together",
    1,
    [
        row(0, "a", "final", 100, 300.0),
        row(0, "b", "final", 100, 500.0),
        row(1, "c", "final", 100, 700.0),
        row(1, "a", "retest", 100, 200.0),
        row(1, "b", "retest", 100, 450.0),
    ],
)


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


class TestTransfer:
    RISING = Curve(np.array([0.0, 100.0]), np.array([0.0, 500.0]))

    def test_a_hand_computed_forward_transfer(self) -> None:
        transfer = Curve(np.array([0.0, 50.0, 100.0]), np.array([0.0, 500.0, 500.0]))
        assert forward_transfer(transfer, self.RISING) == pytest.approx((0.375 - 0.25) / (1 - 0.25))
        assert forward_transfer(transfer, self.RISING, 500.0) == pytest.approx((0.75 - 0.5) / (1 - 0.5))

    def test_curves_are_compared_over_the_frames_they_share(self) -> None:
        longer = Curve(np.array([50.0, 100.0, 900.0]), np.array([1000.0, 1000.0, 0.0]))
        assert common_range([longer, self.RISING]) == (50.0, 100.0)
        assert forward_transfer(longer, self.RISING) == 1.0
        apart = Curve(np.array([100.0, 200.0]), np.array([1.0, 2.0]))
        assert forward_transfer(apart, self.RISING) is None
        assert forward_transfer(Curve(np.array([]), np.array([])), self.RISING) is None
        assert common_range([]) is None

    def test_nothing_can_be_gained_over_a_perfect_curve(self) -> None:
        perfect = Curve(np.array([0.0, 100.0]), np.array([1000.0, 1000.0]))
        assert forward_transfer(self.RISING, perfect) is None
        assert forward_transfer(perfect, self.RISING) == 1.0

    @quick
    @given(st.data(), st.integers(2, 6), st.integers(2, 6))
    def test_equal_curves_gain_nothing_and_swapped_ones_invert_what_is_left(
        self, data: st.DataObject, first: int, second: int
    ) -> None:
        def draw(count: int) -> Curve:
            heights = data.draw(st.lists(st.floats(0, 990), min_size=count, max_size=count))
            inner = data.draw(st.lists(st.integers(1, 99), min_size=count - 2, max_size=count - 2, unique=True))
            return Curve(np.array([0, *sorted(inner), 100], dtype=float), np.array(heights))

        ours, theirs = draw(first), draw(second)
        assert forward_transfer(ours, ours) == 0
        there, back = forward_transfer(ours, theirs), forward_transfer(theirs, ours)
        assert there is not None
        assert back is not None
        # 1 - transfer is the ratio of what both leave to gain, so swapping them inverts it.
        assert (1 - there) * (1 - back) == pytest.approx(1)
        union = np.union1d(ours.frames, theirs.frames)
        on_union = np.trapezoid(np.interp(union, ours.frames, ours.scores), union) / 100_000
        assert area(ours, 0.0, 100.0) == pytest.approx(on_union)

    def test_a_curve_takes_the_later_of_two_evaluations_at_one_frame(self) -> None:
        curve = learning_curve(one_task(1, (0, 1.0), (10, 2.0), (10, 3.0), (20, 4.0)), "b", 15)
        assert (curve.frames.tolist(), curve.scores.tolist()) == ([0, 10], [1, 3])

    @pytest.mark.parametrize(
        ("transfer", "scratch", "percent"),
        [(1.5, 1.0, 50.0), (1.0, 2.0, -50.0), (5.0, 0.0, None), (5.0, -1.0, None), (5.0, 1e-320, None)],
    )
    def test_the_benefit_in_percent_of_scratch(self, transfer: float, scratch: float, percent: float | None) -> None:
        assert transfer_benefit(transfer, scratch) == percent

    @pytest.mark.parametrize(
        ("scratch", "transfer", "printed", "digits"), [(548, 657, 16.5, 1), (474, 551, 13.8, 1), (481, 410, -14.76, 2)]
    )
    def test_the_papers_percentages_divide_by_the_larger_score(
        self, scratch: int, transfer: int, printed: float, digits: int
    ) -> None:
        # The printed scores are rounded, so the one behind each lies within a half of it.
        corners = [(transfer + t, scratch + s) for t in (-0.5, 0.5) for s in (-0.5, 0.5)]
        reach = 0.5 * 10**-digits
        by_larger = [100 * (t - s) / max(t, s) for t, s in corners]
        assert min(by_larger) - reach <= printed <= max(by_larger) + reach
        ours = [100 * (t - s) / s for t, s in corners]
        assert (min(ours) - reach <= printed <= max(ours) + reach) == (transfer < scratch)


class TestInterquartileMean:
    @quick
    @given(groups, st.randoms(use_true_random=False), st.floats(-1e3, 1e3), st.floats(0, 100))
    def test_it_lies_between_and_follows_order_shift_and_scale(
        self, values: list[float], random: Any, shift: float, scale: float
    ) -> None:
        found = iqm(values)
        assert min(values) - 1e-9 <= found <= max(values) + 1e-9
        shuffled = list(values)
        random.shuffle(shuffled)
        assert iqm(shuffled) == found
        assert iqm([scale * value + shift for value in values]) == pytest.approx(scale * found + shift, abs=1e-6)
        assert iqm([-value for value in values]) == pytest.approx(-found, abs=1e-9)

    @quick
    @given(st.lists(scores, min_size=1, max_size=2))
    def test_of_one_or_two_it_is_the_mean(self, values: list[float]) -> None:
        assert iqm(values) == pytest.approx(np.mean(values))

    @quick
    @given(st.integers(1, 4).flatmap(lambda n: st.lists(scores, min_size=4 * n, max_size=4 * n)))
    def test_where_four_divides_the_number_it_is_the_mean_of_the_middle_half(self, values: list[float]) -> None:
        quarter = len(values) // 4
        assert iqm(values) == pytest.approx(np.mean(sorted(values)[quarter:-quarter]), abs=1e-9)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0, 6, 60], (0 + 4 * 6 + 60) / 6),
            ([100, 1, 2, 3, -100], 2.0),
            ([0, 4, 10, 20, 999], (3 * 4 + 40 + 60) / 10),
        ],
    )
    def test_hand_computed_fractions(self, values: list[float], expected: float) -> None:
        assert iqm(values) == pytest.approx(expected)


class TestBootstrap:
    def test_a_single_run_has_no_interval(self) -> None:
        assert Statistic.of([5.0]) == (1, 5.0, 0.0, 5.0, None, None)
        with pytest.raises(ValueError, match="no scores"):
            Statistic.of([])

    def test_the_deviation_is_that_of_the_population(self) -> None:
        assert Statistic.of([1.0, 3.0]).std == 1.0

    @quick
    @given(seeds_of, st.randoms(use_true_random=False))
    def test_intervals_repeat_lie_inside_the_scores_and_ignore_order(self, values: list[float], random: Any) -> None:
        found = Statistic.of(values, 200)
        random.shuffle(values)
        assert Statistic.of(values, 200) == found
        for interval in (found.mean_interval, found.iqm_interval):
            assert interval is not None
            assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9

    @quick
    @given(seeds_of, st.floats(1, 10))
    def test_intervals_widen_with_the_spread(self, values: list[float], factor: float) -> None:
        narrow, wide = Statistic.of(values, 200), Statistic.of([factor * value for value in values], 200)
        for one, other in [(narrow.mean_interval, wide.mean_interval), (narrow.iqm_interval, wide.iqm_interval)]:
            assert width(other) == pytest.approx(factor * width(one), abs=1e-6)

    def test_the_interval_of_a_mean_is_about_the_normal_one(self) -> None:
        values = np.random.default_rng(1).normal(500, 100, 200)
        interval = Statistic.of(values.tolist()).mean_interval
        assert width(interval) == pytest.approx(2 * 1.96 * 100 / math.sqrt(200), rel=0.15)


def width(interval: Interval | None) -> float:
    assert interval is not None
    return interval.high - interval.low


def by_seed(values: Sequence[float], first: int = 1) -> list[SeedScore]:
    return [SeedScore(first + number, value) for number, value in enumerate(values)]


class TestComparison:
    SPREAD = (100.0, 300.0, 500.0, 900.0)

    def test_equal_seeds_are_drawn_together(self) -> None:
        better = [value + 50 for value in self.SPREAD]
        paired = compare(by_seed(better), by_seed(self.SPREAD)[::-1], difference)
        assert paired.paired
        assert paired.mean == paired.iqm == 50
        assert paired.mean_interval == pytest.approx((50, 50))
        apart = compare(by_seed(better), by_seed(self.SPREAD, first=9), difference)
        assert not apart.paired
        assert apart.mean == 50
        assert width(apart.mean_interval) > 400

    @pytest.mark.parametrize("seeds", [(1, 2, 3), (1, 1), (None, 2), (1,), (1, 3)])
    def test_other_seeds_repeated_ones_and_unknown_ones_are_not_paired(self, seeds: tuple[int | None, ...]) -> None:
        assert not compare([SeedScore(seed, 1.0) for seed in seeds], by_seed([1.0, 2.0]), difference).paired

    def test_a_single_run_on_one_side_leaves_no_interval(self) -> None:
        found = compare(by_seed([1.0, 2.0]), by_seed([1.0]), difference)
        assert (found.mean, found.mean_interval, found.iqm_interval) == (0.5, None, None)

    def test_a_ratio_that_some_draws_leave_undefined_has_no_interval(self) -> None:
        found = compare(by_seed([200.0, 400.0]), by_seed([0.0, 200.0]), percent_of_scratch)
        assert (found.mean, found.mean_interval) == (200.0, None)
        assert compare(by_seed([200.0]), by_seed([0.0]), percent_of_scratch).mean is None

    def test_it_is_the_measure_of_the_centres(self) -> None:
        found = compare(by_seed([300.0, 500.0]), by_seed([100.0, 300.0]), percent_of_scratch)
        assert found.mean == pytest.approx(100.0)  # the mean of both runs' own percentages would be 133
        assert found.mean_interval == pytest.approx((200 / 3, 200.0))

    def test_forward_transfer_of_areas(self) -> None:
        assert compare(by_seed([0.5]), by_seed([0.2]), normalised_gain).mean == pytest.approx(0.375)
        assert compare(by_seed([0.5]), by_seed([1.0]), normalised_gain).mean is None

    @quick
    @given(seeds_of, st.data())
    def test_swapping_the_groups_turns_a_difference_round(self, ours: list[float], data: st.DataObject) -> None:
        theirs = data.draw(st.lists(scores, min_size=len(ours), max_size=len(ours)))
        there = compare(by_seed(ours), by_seed(theirs), difference, 100)
        back = compare(by_seed(theirs), by_seed(ours), difference, 100)
        assert there.mean == pytest.approx(-back.mean)
        assert there.iqm == pytest.approx(-back.iqm)
        assert there.iqm_interval is not None
        assert back.iqm_interval is not None
        assert there.iqm_interval == pytest.approx((-back.iqm_interval.high, -back.iqm_interval.low), abs=1e-6)

    def test_nothing_to_compare(self) -> None:
        with pytest.raises(ValueError, match="nothing to compare"):
            compare([], by_seed([1.0]), difference)


def write(folder: Path, rows: Sequence[Row], config: str | None = '{"seed": 3, "unknown": 1}') -> Path:
    folder.mkdir()
    (folder / "evals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if config is not None:
        (folder / "config.json").write_text(config)
    return folder


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
        code = "import sys, ctrlformer.scores_command; print('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def learner(seed: int, bonus: float = 0.0) -> RunScores:
    rows = [one | {"mean": one["mean"] + bonus} for one in SEQUENCE]
    return RunScores.of(f"seed{seed}", seed, rows)


class TestSummary:
    RUNS = (learner(1), learner(2, 20.0))
    SCRATCH = (one_task(1, (0, 0.0), (100, 400.0)), one_task(2, (0, 0.0), (100, 420.0)))

    def test_the_matrix_over_runs_as_markdown(self) -> None:
        assert retest_matrix_markdown(self.RUNS).splitlines() == [
            "| task | after a | after b | after c |",
            "|---|---|---|---|",
            "| a | 810.0 ± 10.0 | 710.0 ± 10.0 | 750.0 ± 10.0 |",
            "| b |  | 610.0 ± 10.0 | 640.0 ± 10.0 |",
            "| c |  |  | 910.0 ± 10.0 |",
        ]
        short = RunScores.of("short", 3, SEQUENCE[:3])
        assert "| a | 800.0 ± 0.0 | 700.0 | 740.0 |" in retest_matrix_markdown([short, RUN])
        assert "after a + b | after c" in retest_matrix_markdown([TOGETHER])

    def test_runs_of_other_curricula_are_not_mixed(self) -> None:
        with pytest.raises(RunError, match="together and sequence learn other tasks"):
            retest_matrix_markdown([RUN, TOGETHER])

    def test_every_measure_over_runs(self) -> None:
        found = {(one.measure, one.task): one.statistic for one in summarise(self.RUNS).figures}
        means = {key: statistic.mean for key, statistic in found.items()}
        assert means.pop(("average over tasks", None)) == pytest.approx((750 + 640 + 910) / 3)
        assert means.pop(("retest / final", "a")) == pytest.approx((740 / 800 + 760 / 820) / 2)
        assert means.pop(("retest / final", "b")) == pytest.approx((630 / 600 + 650 / 620) / 2)
        assert means == {
            ("score", "a"): 810,
            ("score", "b"): 610,
            ("score", "c"): 910,
            ("last retest", "a"): 750,
            ("retest - final", "a"): -60,
            ("forgetting", "a"): 80,
            ("last retest", "b"): 640,
            ("retest - final", "b"): 30,
            ("forgetting", "b"): -30,
            ("mean forgetting", None): 25,
        }
        assert {statistic.runs for statistic in found.values()} == {2}

    def test_runs_on_their_way_count_in_scores_only(self) -> None:
        summary = summarise([*self.RUNS, RunScores.of("early", 3, SEQUENCE[:8])], frames=50)
        counts = {(one.measure, one.task): (one.statistic.runs, one.frames) for one in summary.figures}
        assert counts["score", "a"] == (3, (50, 50))
        assert counts["forgetting", "a"] == (2, None)
        assert summary.incomplete == ("early",)

    def test_transfer_beside_scratch(self) -> None:
        found = {(one.measure, one.task): one for one in summarise(self.RUNS, self.SCRATCH).contrasts}
        assert {task for _, task in found} == {"b"}
        gain, percent, forward = (
            found[name, "b"] for name in ("transfer - scratch", "benefit, % of scratch", "forward transfer")
        )
        assert (gain.comparison.mean, gain.comparison.paired, gain.frames) == (200, True, (100, 100))
        assert percent.comparison.mean == pytest.approx(100 * 200 / 410)
        assert forward.comparison.mean == pytest.approx((0.32 - 0.205) / (1 - 0.205))
        assert forward.frames == (0, 100)

    def test_both_sides_are_scored_where_the_shorter_one_ends(self) -> None:
        shorter = [one_task(1, (0, 4.0), (10, 40.0))]
        (gain, *_) = summarise(self.RUNS, shorter, frames=100).contrasts
        assert (gain.comparison.mean, gain.frames) == (30.0 - 40.0, (0, 10))

    def test_scratch_runs_that_compare_with_nothing(self) -> None:
        with pytest.raises(RunError, match="no task"):
            summarise(self.RUNS, [one_task(1, (0, 1.0), (9, 2.0), task="a")])
        with pytest.raises(RunError, match="no task"):
            summarise(self.RUNS, [TOGETHER])

    def test_a_task_learnt_together_with_others_is_compared(self) -> None:
        contrasts = summarise([TOGETHER], [one_task(1, (0, 1.0), (100, 250.0))]).contrasts
        assert [one.comparison.mean for one in contrasts] == [250.0, 100.0]  # one evaluation makes no curve


class TestCommand:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> Callable[[str, Sequence[Row]], Path]:
        return lambda name, rows: write(tmp_path / name, rows)

    def test_tables_as_markdown_and_the_file(
        self, folders: Callable[[str, Sequence[Row]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run, early = folders("run", SEQUENCE), folders("early", SEQUENCE[:4])
        scratch = folders("scratch", [row(0, "b", "learn", 0, 0.0), row(0, "b", "final", 100, 400.0)])
        main([run, early], [scratch], None, tmp_path / "scores.json")
        printed = capsys.readouterr().out
        for title in ("## Over runs", "## Retests", "## Transfer beside scratch"):
            assert title in printed
        assert "| a | 800.0 ± 0.0 | 700.0 | 740.0 |" in printed
        assert f"{early} has not come to the end" in printed
        data = json.loads((tmp_path / "scores.json").read_text())
        assert data["runs"][0]["retests"] == [[800, 700, 740], [None, 600, 630], [None, None, 900]]
        assert data["figures"][0]["iqm"] == 800
        assert {one["task"] for one in data["comparisons"]} == {"b"}

    def test_a_bracket_or_a_bar_in_a_name_is_only_a_character(self) -> None:
        runs = [RunScores.of("run", 1, [row(0, "gym/[red]|x", "final", 10, 1.0)])]
        ((title, cells),) = summarise(runs).tables().items()
        assert as_table(title, cells).row_count == 1
        assert "gym/[red]\\|x" in retest_matrix_markdown(runs)

    def test_mistakes_are_one_clear_line(self, folders: Callable[[str, Sequence[Row]], Path], tmp_path: Path) -> None:
        run = folders("run", [row(0, "a", "final", 10, 1.0)])
        with pytest.raises(ConfigError, match="name at least one"):
            main([], [], None, None)
        with pytest.raises(ConfigError, match="named twice"):
            main([run, run / ".." / "run"], [], None, None)
        with pytest.raises(ConfigError, match="--frames is -1"):
            main([run], [], -1, None)
        with pytest.raises(ConfigError, match="no folder"):
            main([run], [], None, tmp_path / "absent" / "scores.json")
        with pytest.raises(ConfigError, match="--maximum is 0"):
            main([run], [], None, None, maximum=0.0)
        with pytest.raises(RunError, match="no run has an evaluation within 9 frames"):
            main([run], [], 9, None)
