"""Statistics over seeds: mean, std, interquartile mean, and how far seeds alone could have moved them.

The intervals are percentile bootstraps: seeds are drawn again with replacement, the statistic is computed anew for
every draw, and its interval is the middle 95 % of them. The draws come from a fixed generator and the values are put
in order first, so the same scores always give the same interval, in whatever order the runs are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
COVERAGE = 0.95

Array: TypeAlias = NDArray[np.float64]
Centre: TypeAlias = Callable[[Array], Array]
"""One number for every row of values: the mean or the interquartile mean."""
Measure: TypeAlias = Callable[[Array, Array], Array]
"""A measure of two scores, transfer's and scratch's, elementwise; NaN where it is not defined."""


class Interval(NamedTuple):
    """Where the middle 95 % of the resampled statistics lie."""

    low: float
    high: float


class SeedScore(NamedTuple):
    """One run's score, with the seed by which runs of two groups are paired."""

    seed: int | None
    score: float


class Statistic(NamedTuple):
    """One score over runs."""

    runs: int
    mean: float
    std: float
    """Of the population: divided by the number of runs, not by one less."""
    iqm: float
    mean_interval: Interval | None
    """None for a single run, which says nothing about how far runs lie apart."""
    iqm_interval: Interval | None

    @classmethod
    def of(cls, scores: Sequence[float], resamples: int = RESAMPLES) -> Statistic:
        """
        >>> Statistic.of([700.0, 800.0])[:4]
        (2, 750.0, 50.0, 750.0)
        >>> Statistic.of([700.0]).iqm_interval is None
        True
        """
        values = np.sort(np.asarray(scores, dtype=np.float64))
        if not values.size:
            raise ValueError("no scores to summarise")
        drawn = values[_draws(np.random.default_rng(0), resamples, values.size)] if values.size > 1 else None
        return cls(
            values.size,
            float(values.mean()),
            float(values.std()),
            iqm(scores),
            None if drawn is None else _interval(_mean(drawn)),
            None if drawn is None else _interval(_iqm(drawn)),
        )


class Comparison(NamedTuple):
    """A measure of two groups of runs."""

    transfer_runs: int
    scratch_runs: int
    paired: bool
    """Both groups have the same seeds, which are then drawn together."""
    mean: float | None
    """The measure of both groups' means; none where it is not defined."""
    iqm: float | None
    mean_interval: Interval | None
    """None with a single run on one side, and where the measure is not defined for every draw."""
    iqm_interval: Interval | None


def iqm(scores: Sequence[float]) -> float:
    """The interquartile mean: the mean of the middle half, where scores on its edges count by the part inside.

    Of n sorted scores the i-th stands for the share [(i-1)/n, i/n] and weighs what of it lies within [1/4, 3/4],
    divided by 1/2. One or two scores give their mean. When 4 divides n this is the mean of the middle n/2 scores,
    as in rliable; otherwise rliable cuts floor(n/4) whole scores from each side, and so trims less than a quarter.

    >>> iqm([0.0, 10.0, 20.0, 990.0]), iqm([0.0, 6.0, 60.0])
    (15.0, 14.0)
    """
    return float(_iqm(np.asarray(scores, dtype=np.float64)))


def compare(
    transfer: Sequence[SeedScore], scratch: Sequence[SeedScore], measure: Measure, resamples: int = RESAMPLES
) -> Comparison:
    """The measure of the two groups' means, and of their interquartile means, with intervals over seeds.

    It is a measure of centres, not a centre of measures: a scratch run that scored next to nothing would otherwise
    make a ratio of its own that drowns all others. With the same seeds on both sides every draw takes the same seeds
    of both; otherwise each side is drawn by itself.
    """
    if not transfer or not scratch:
        raise ValueError("nothing to compare")
    ours, theirs = sorted(transfer, key=_by_seed), sorted(scratch, key=_by_seed)
    paired = _same_seeds(ours, theirs)
    first, second = (np.array([one.score for one in group]) for group in (ours, theirs))
    drawn = None
    if min(first.size, second.size) > 1:
        generator = np.random.default_rng(0)
        rows = _draws(generator, resamples, first.size)
        drawn = first[rows], second[rows if paired else _draws(generator, resamples, second.size)]

    def value(centre: Centre) -> float | None:
        found = float(measure(centre(first), centre(second)))
        return found if np.isfinite(found) else None

    def interval(centre: Centre) -> Interval | None:
        return None if drawn is None else _interval(measure(centre(drawn[0]), centre(drawn[1])))

    return Comparison(first.size, second.size, paired, value(_mean), value(_iqm), interval(_mean), interval(_iqm))


def _mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


def _iqm(values: Array) -> Array:
    """Of every row."""
    count = values.shape[-1]
    # In quarters of a score, which are whole numbers: the middle half is from `count` to three times that.
    weights = np.diff(np.clip(4 * np.arange(count + 1), count, 3 * count))
    return np.asarray(np.sort(values, axis=-1) @ weights / (2 * count))


def _draws(generator: np.random.Generator, resamples: int, count: int) -> NDArray[np.int64]:
    return generator.integers(count, size=(resamples, count))


def _interval(values: Array) -> Interval | None:
    """None if one of the values is not defined: leaving it out would make the interval look better than it is."""
    if not np.isfinite(values).all():
        return None
    low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Interval(float(low), float(high))


def _by_seed(one: SeedScore) -> tuple[bool, int, float]:
    return one.seed is None, one.seed or 0, one.score


def _same_seeds(ours: Sequence[SeedScore], theirs: Sequence[SeedScore]) -> bool:
    """Whether every seed is on both sides exactly once."""
    seeds = [one.seed for one in ours]
    return None not in seeds and len(set(seeds)) == len(seeds) and seeds == [one.seed for one in theirs]
