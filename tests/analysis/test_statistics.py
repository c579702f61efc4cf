"""Figures over seeds: known cases, and what holds for any scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlformer.analysis.statistics import Interval, SeedScore, Statistic, compare, iqm
from ctrlformer.analysis.transfer import difference, normalised_gain, percent_of_scratch

quick = settings(max_examples=60, deadline=None)
scores = st.floats(-1e4, 1e4, allow_subnormal=False)
groups = st.lists(scores, min_size=1, max_size=12)
seeds_of = st.lists(scores, min_size=2, max_size=8)


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
