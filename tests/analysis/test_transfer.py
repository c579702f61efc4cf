"""Transfer against scratch: hand-computed cases, and properties over any scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_runs import RUN, TOGETHER, one_task

from ctrlformer.analysis.metrics import RunScores
from ctrlformer.analysis.transfer import (
    difference,
    forward_transfer,
    from_scratch,
    percent_of_scratch,
    scores_at_budget,
)

quick = settings(max_examples=60, deadline=None)
RISING = one_task(1, (0, 0.0), (100, 500.0))


def gain(transfer: RunScores, scratch: RunScores, maximum: float = 1000.0) -> float | None:
    found = forward_transfer([transfer], [scratch], "b", maximum=maximum)
    return found.comparison.mean if found else None


class TestForwardTransfer:
    def test_a_hand_computed_one(self) -> None:
        transfer = one_task(1, (0, 0.0), (50, 500.0), (100, 500.0))
        assert gain(transfer, RISING) == pytest.approx((0.375 - 0.25) / (1 - 0.25))
        assert gain(transfer, RISING, 500.0) == pytest.approx((0.75 - 0.5) / (1 - 0.5))

    def test_curves_are_compared_over_the_frames_they_share(self) -> None:
        longer = one_task(1, (50, 1000.0), (100, 1000.0), (900, 0.0))
        found = forward_transfer([longer], [RISING], "b")
        assert found is not None
        assert (found.comparison.mean, found.frames) == (1.0, (50, 100))
        assert gain(one_task(1, (100, 1.0), (200, 2.0)), RISING) is None
        assert gain(one_task(1, (0, 1.0), (200, 2.0), task="other"), RISING) is None
        assert forward_transfer([], [RISING], "b") is None

    def test_a_budget_cuts_the_curves(self) -> None:
        late = one_task(1, (0, 0.0), (50, 250.0), (100, 1000.0))
        found = forward_transfer([late], [one_task(2, (0, 0.0), (50, 250.0), (100, 500.0))], "b", frames=60)
        assert found is not None
        assert (found.comparison.mean, found.frames) == (0.0, (0, 50))

    def test_nothing_can_be_gained_over_a_perfect_curve(self) -> None:
        perfect = one_task(1, (0, 1000.0), (100, 1000.0))
        assert gain(RISING, perfect) is None
        assert gain(perfect, RISING) == 1.0

    @quick
    @given(st.data(), st.integers(2, 6), st.integers(2, 6))
    def test_equal_curves_gain_nothing_and_swapped_ones_invert_what_is_left(
        self, data: st.DataObject, first: int, second: int
    ) -> None:
        def draw(count: int) -> RunScores:
            heights = data.draw(st.lists(st.floats(0, 990), min_size=count, max_size=count))
            inner = data.draw(st.lists(st.integers(1, 99), min_size=count - 2, max_size=count - 2, unique=True))
            return one_task(1, *zip([0, *sorted(inner), 100], heights, strict=True))

        ours, theirs = draw(first), draw(second)
        assert gain(ours, ours) == 0
        there, back = gain(ours, theirs), gain(theirs, ours)
        assert there is not None
        assert back is not None
        # 1 - transfer is the ratio of what both leave to gain, so swapping them inverts it.
        assert (1 - there) * (1 - back) == pytest.approx(1)


class TestScores:
    def test_both_sides_are_scored_where_the_shortest_run_ends(self) -> None:
        longer = one_task(2, (0, 0.0), (60, 300.0), (200, 900.0))
        found = scores_at_budget([RISING], [longer], "b")
        assert found is not None
        assert (found.budget, found.frames) == (100, (60, 100))
        ahead = found.gain(difference)
        assert ahead is not None
        assert ahead.comparison.mean == 500.0 - 300.0
        early = scores_at_budget([RISING], [longer], "b", frames=70)
        assert early is not None
        assert (early.budget, [one.score for one in early.transfer + early.scratch]) == (70, [0.0, 300.0])

    def test_a_side_without_a_score_so_early_gains_nothing(self) -> None:
        late = one_task(2, (60, 300.0), (200, 900.0))
        found = scores_at_budget([RISING], [late], "b", frames=50)
        assert found is not None
        assert found.gain(difference) is None
        assert scores_at_budget([], [], "b") is None
        assert scores_at_budget([RISING], [late], "other") is None

    def test_from_scratch_is_first_and_alone(self) -> None:
        assert from_scratch(RUN, "a")
        assert not from_scratch(RUN, "b")
        assert not from_scratch(TOGETHER, "a")
        assert not from_scratch(RUN, "unknown")


class TestPercentages:
    @pytest.mark.parametrize(
        ("transfer", "scratch", "percent"),
        [(1.5, 1.0, 50.0), (1.0, 2.0, -50.0), (5.0, 0.0, np.nan), (5.0, -1.0, np.nan), (5.0, 1e-320, np.inf)],
    )
    def test_the_benefit_in_percent_of_scratch(self, transfer: float, scratch: float, percent: float) -> None:
        np.testing.assert_equal(percent_of_scratch(np.array(transfer), np.array(scratch)), percent)

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
