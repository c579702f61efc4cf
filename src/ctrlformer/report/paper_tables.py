"""Tables against the paper that `ctrlformer reproduce` left beside its runs, ready to stand inside the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from ctrlformer.errors import RunError
from ctrlformer.paper.experiments import EXPERIMENTS, SCALES
from ctrlformer.storage.files import JSON, parse_json, read_bounded, reason

TABLE_BYTES = 16 << 20


class ExperimentTable(NamedTuple):
    """An experiment's lines, as text."""

    title: str
    headings: list[str]
    lines: list[list[str]]
    notes: list[str]


def read_tables(folders: Sequence[Path]) -> list[ExperimentTable]:
    """Of the experiments that the runs belong to: their tables stand two folders above the run, and list its name."""
    names: dict[Path, set[str]] = {}
    for folder in map(Path.resolve, folders):
        names.setdefault(folder.parent.parent, set()).add(folder.name)
    files = [
        (out / f"{experiment}-{scale}.json", runs)
        for out, runs in names.items()
        for experiment, scale in product(EXPERIMENTS, SCALES)
    ]
    return [found for path, runs in files if (found := _read(path, runs))]


def _read(path: Path, runs: set[str]) -> ExperimentTable | None:
    """None if there is no such table, or none of the runs is in it."""
    try:
        data = parse_json(read_bounded(path, TABLE_BYTES))
        if runs.isdisjoint(map(str, data["runs"])):
            return None
        headings, *lines = _without_empty_columns([_texts(line) for line in data["table"]])
        return ExperimentTable(str(data["title"]), headings, lines, _texts(data["notes"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from None
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{path} makes no sense ({error!r:.100}): run `ctrlformer reproduce` again") from None


def _without_empty_columns(table: list[list[str]]) -> list[list[str]]:
    """
    >>> _without_empty_columns([["seeds", "interval"], ["1", ""]])
    [['seeds'], ['1']]
    """
    kept = [any(column[1:]) for column in zip(*table, strict=True)]
    return [[text for text, keep in zip(line, kept, strict=True) if keep] for line in table]


def _texts(values: JSON) -> list[str]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.40} is no list")
    return [str(value) for value in values]
