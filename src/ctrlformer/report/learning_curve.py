"""Learning curves of a run as a PNG, from the rows of evals.jsonl alone."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST_RETURN = 1e100


def learning_curve(title: str, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A PNG with one line per task: mean return against frames, shaded by the episodes' std.

    >>> row = {"task": "toy/reach", "kind": "learn", "frames": 0, "mean": 3.0, "std": 1.0}
    >>> learning_curve("a run", [row])[1:4]
    b'PNG'
    """
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=120)
    axes = figure.add_subplot()
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] not in ("retest", "probe"):
            curves.setdefault(row["task"], []).append(row)
    for task, points in curves.items():
        frames = [point["frames"] for point in points]
        means = [point["mean"] for point in points]
        axes.plot(frames, means, marker="o", markersize=3, label=_plain(task))
        axes.fill_between(
            frames,
            [point["mean"] - _std(point) for point in points],
            [point["mean"] + _std(point) for point in points],
            alpha=0.2,
        )
    axes.set(title=_plain(title), xlabel="frames of the task", ylabel="return with the mean action")
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(loc="best")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _plain(name: str) -> str:
    """A name that matplotlib takes for no formula and no hidden label."""
    return " " * name.startswith("_") + name.replace("$", r"\$")


def _std(row: Mapping[str, Any]) -> float:
    """Of a row whose other numbers have been checked; a row of another version may be without."""
    std = row.get("std")
    return std if isinstance(std, int | float) and 0 <= std < LARGEST_RETURN else 0.0
