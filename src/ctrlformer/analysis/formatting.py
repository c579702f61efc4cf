"""Formatting: numbers and intervals as text, tables on a terminal."""

from __future__ import annotations

from typing import TypeAlias

from rich.table import Table
from rich.text import Text

from ctrlformer.analysis.statistics import Interval

Cells: TypeAlias = list[list[str]]
"""Lines of a table, its headings first."""


def as_table(title: str, cells: Cells) -> Table:
    headings, *lines = cells
    table = Table(*headings, title=title)
    for line in lines:
        table.add_row(*map(Text, line))  # Text: a bracket in a task's name is no markup
    return table


def short(value: float | None) -> str:
    """At least four digits, and no more decimals than they need.

    >>> short(846.3), short(1000.0), short(-0.1234567), short(None)
    ('846.3', '1000', '-0.1235', 'undefined')
    """
    if value is None:
        return "undefined"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def frames_text(span: tuple[int, int]) -> str:
    """
    >>> frames_text((50_000, 100_000)), frames_text((500, 500))
    ('50,000 to 100,000', '500')
    """
    return " to ".join(f"{count:,}" for count in sorted(set(span)))


def interval_text(interval: Interval | None) -> str:
    return f"{short(interval.low)} to {short(interval.high)}" if interval else ""
