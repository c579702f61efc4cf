"""What others reached, from the package's data: every score that the paper prints, and public curves of others."""

from __future__ import annotations

import functools
from importlib import resources
from typing import NamedTuple

from ctrlformer.storage.files import JSON, parse_json

PUBLIC_FRAMES = (100_000, 500_000)  # where the public curves are read


class PaperScore(NamedTuple):
    """One score of the paper; `source` is the task before a transfer, or the one after which a task is retested."""

    method: str
    task: str
    protocol: str
    frames: int
    mean: float | None
    """None for what the paper measures but does not print."""
    std: float | None
    source: str | None


class PublicScore(NamedTuple):
    """A system's score from scratch, by the curves in its public repository."""

    system: str
    frames: int
    mean: float
    std: float


class PublicMean(NamedTuple):
    """A system's score from scratch at 100k frames, from any public file; action repeats differ between systems."""

    system: str
    mean: float
    std: float | None
    """None where the source gives none."""


def paper_scores(experiment: str) -> list[PaperScore]:
    """What the paper prints for an experiment, in its order.

    >>> paper_scores("manipulation")[0]
    PaperScore(method='drq', task='reach_ball', protocol='scratch', frames=500000, mean=154, std=41, source=None)
    """
    rows = (row for row in _data("paper_results.json")["rows"] if row["experiment"] == experiment)
    return [PaperScore(*(row.get(name) for name in PaperScore._fields)) for row in rows]


def public_scores(task: str) -> list[PublicScore]:
    """Of every system that ships curves of the task."""
    systems: dict[str, list[float]] = _data("public_scores.json")["scores"].get(task, {})
    return [
        PublicScore(system, frames, *columns[2 * index : 2 * index + 2])
        for system, columns in systems.items()
        for index, frames in enumerate(PUBLIC_FRAMES)
        if columns[2 * index] is not None
    ]


def public_at_100k(task: str) -> list[PublicMean]:
    """Return every public score of the task at 100k frames; the data file names the source of each system.

    >>> max(public_at_100k("walker_walk"), key=lambda public: public.mean)
    PublicMean(system='mlr', mean=643, std=114)
    """
    systems: dict[str, list[float]] = _data("public_100k.json")["scores"].get(task, {})
    return [PublicMean(system, *columns) for system, columns in systems.items()]


def doubt(score: PaperScore) -> str | None:
    """Whether the paper's score is above all that public curves of the task show, in words.

    >>> [doubt(score) for score in paper_scores("sequence_of_four") if score.mean in (671, 878)]
    [None, 'paper above every public evaluation (851)']
    """
    if score.mean is None:
        return None
    highest = _data("public_scores.json")["highest_single_evaluation_seen"].get(score.task)
    means = [public.mean for public in public_scores(score.task)]
    if highest is not None and score.mean > highest:
        return f"paper above every public evaluation ({highest:g})"
    if highest is None and means and score.mean > max(means):
        return f"paper above every public mean ({max(means):g})"
    return None


@functools.cache
def _data(name: str) -> JSON:
    return parse_json((resources.files(__package__) / "data" / name).read_bytes())
