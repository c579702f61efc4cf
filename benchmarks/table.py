"""Rows of the speed table: measuring two things in turn, comparing them, and showing the result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich import box
from rich.table import Table

from ctrlformer.storage.files import JSON


@dataclass(frozen=True)
class Effort:
    """How much is measured; the batches of slow networks are a part of their presets' 512."""

    repeats: int
    paper_batch: int
    cnn_batch: int
    transitions: int
    """Held by every replay."""
    learnt_steps: int
    """Of a whole training."""


QUICK = Effort(repeats=3, paper_batch=16, cnn_batch=64, transitions=2000, learnt_steps=120)
FULL = Effort(repeats=7, paper_batch=32, cnn_batch=128, transitions=4000, learnt_steps=400)


class Sample(NamedTuple):
    """One figure, measured several times."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def scaled(self, factor: float) -> Sample:
        return Sample(self.median * factor, self.low * factor, self.high * factor, self.repeats)

    def each(self, function: Callable[[float], float]) -> Sample:
        """The sample of a monotonic function of the figure.

        >>> Sample(2.0, 1.0, 4.0, 3).each(lambda seconds: 1 / seconds)
        Sample(median=0.5, low=0.25, high=1.0, repeats=3)
        """
        low, high = sorted((function(self.low), function(self.high)))
        return Sample(function(self.median), low, high, self.repeats)

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})" if self.repeats > 1 else f"{self.median:.3g}"


class SpeedComparison(NamedTuple):
    """Ours beside the reference, in the same unit."""

    ours: Sample
    reference: Sample
    unit: str
    note: str
    more_is_better: bool = False
    sound: bool = True  # whether both did the same; without it no ratio meets its aim
    figures: JSON = None  # more of what was measured, for the file

    @property
    def ratio(self) -> float:
        """How many times better ours is, by medians."""
        ours, reference = self.ours.median, self.reference.median
        return ours / reference if self.more_is_better else reference / ours


@dataclass(frozen=True)
class Aim:
    """The ratio to reach.

    >>> str(Aim(2.0)), Aim(2.0).met_by(2.0), str(AHEAD), AHEAD.met_by(1.0)
    ('>= 2x', True, '> 1x', False)
    """

    ratio: float
    more: bool = False
    """Reaching it is not enough."""

    def met_by(self, ratio: float) -> bool:
        return ratio > self.ratio if self.more else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{'>' if self.more else '>='} {self.ratio:g}x"


AHEAD = Aim(1.0, more=True)


@dataclass(frozen=True)
class TableRow:
    """One line of the table; `comparison` is none where the reference is not installed."""

    name: str
    aim: Aim
    comparison: SpeedComparison | None
    skipped: str = ""

    @property
    def met(self) -> bool:
        """A row that was skipped is not met, and its note says why."""
        found = self.comparison
        return found is not None and found.sound and self.aim.met_by(found.ratio)

    def to_json(self) -> dict[str, JSON]:
        found = self.comparison
        return {
            "row": self.name,
            "ours": found and found.ours.median,
            "reference": found and found.reference.median,
            "ratio": found and found.ratio,
            "aim": str(self.aim),
            "met": self.met,
            "note": found.note if found else self.skipped,
            "unit": found and found.unit,
            "ours_spread": found and [found.ours.low, found.ours.high],
            "reference_spread": found and [found.reference.low, found.reference.high],
            "repeats": found and [found.ours.repeats, found.reference.repeats],
            **({"figures": found.figures} if found and found.figures else {}),
        }

    def cells(self) -> tuple[str, ...]:
        """For a table of 80 columns: medians only, their spread is in the row's own line."""
        found = self.comparison
        if found is None:
            return self.name, "", "", "", "", str(self.aim), "skipped"
        ours, reference = (_short(sample.median) for sample in (found.ours, found.reference))
        figures = (ours, reference, found.unit, f"{found.ratio:.2f}x")
        return self.name, *figures, str(self.aim), self._verdict

    def __str__(self) -> str:
        found = self.comparison
        if found is None:
            return f"{self.name}: {self.skipped}"
        figures = f"ours {found.ours} {found.unit}, reference {found.reference} {found.unit}, {found.ratio:.2f}x"
        return f"{self.name}: {figures}, aim {self.aim}: {self._verdict}"

    @property
    def _verdict(self) -> str:
        return "met" if self.met else "MISSED"


def alternate(
    ours: Callable[[], object], reference: Callable[[], object], repeats: int, warm_ups: int = 1
) -> tuple[Sample, Sample]:
    """Seconds of both, `in_turn`."""
    first, second = in_turn((ours, reference), repeats, warm_ups)
    return first, second


def in_turn(runs: Sequence[Callable[[], object]], repeats: int, warm_ups: int = 1) -> list[Sample]:
    """Seconds of each, run in turn, so that whatever else the machine does meets all alike."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(warm_ups + repeats):
        for run, taken in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run()
            if turn >= warm_ups:
                taken.append(time.perf_counter() - started)
    return [Sample.of(taken) for taken in seconds]


def _short(value: float) -> str:
    """Three digits, and no exponent for what has more.

    >>> _short(0.00759), _short(2764.2)
    ('0.00759', '2764')
    """
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def as_table(rows: Sequence[TableRow]) -> Table:
    table = Table(
        "row", "ours", "reference", "unit", "ratio", "aim", "", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for row in rows:
        table.add_row(*row.cells())
    return table
