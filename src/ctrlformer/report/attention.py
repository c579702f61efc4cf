"""What `ctrlformer explain` left in a run folder, ready to stand inside the page."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ctrlformer.errors import RunError
from ctrlformer.storage.files import JSON, parse_json, read_bounded, reason

FOLDER, INDEX = "explain", "explain.json"
INDEX_BYTES, PICTURE_BYTES, FILM_BYTES = 1 << 20, 4 << 20, 4 << 20
TYPES = {"png": "image/png", "mp4": "video/mp4"}


class Change(NamedTuple):
    """A task's maps at the end of its own stage above those after a later one."""

    after: str
    similarity: float
    picture: str


class Shares(NamedTuple):
    """Parts of a map's mass on what moves, and of the picture that moves."""

    trained: float
    untrained: float
    pixels: float


class Looked(NamedTuple):
    """What one task's token looks at."""

    run: str
    task: str
    method: str
    picture: str
    shares: Shares | None
    changes: list[Change]
    film: str | None


class Alike(NamedTuple):
    """How alike tasks are."""

    run: str
    what: str
    chord: str
    heat: str


class Explained(NamedTuple):
    looked: list[Looked]
    alike: list[Alike]


def read_explained(name: str, folder: Path) -> Explained:
    """Of one run; empty where it was not explained. What does not make sense is a `RunError` that names the file."""
    path = folder / FOLDER / INDEX
    try:
        index = parse_json(read_bounded(path, INDEX_BYTES))
    except FileNotFoundError:
        return Explained([], [])
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {reason(error) if isinstance(error, OSError) else error}") from None
    try:
        looked = [_looked(name, path.parent, task) for task in index["tasks"]]
        alike = [
            Alike(name, str(one["what"]), _data(path.parent, one["chord"]), _data(path.parent, one["heat"]))
            for one in index.get("similarity", [])
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunError(f"{path} makes no sense ({error!r:.100}): run `ctrlformer explain` again") from None
    return Explained(looked, alike)


def _looked(run: str, folder: Path, task: Mapping[str, JSON]) -> Looked:
    shares = task["share_on_moving"]
    return Looked(
        run,
        str(task["task"]),
        str(task["method"]),
        _data(folder, task["attention"]),
        None if shares is None else Shares(*(float(shares[name]) for name in Shares._fields)),
        [
            Change(" + ".join(map(str, one["tasks"])), float(one["similarity"]), _data(folder, one["file"]))
            for one in task["after_later_stages"]
        ],
        _data(folder, task["video"], FILM_BYTES) if task["video"] else None,
    )


def _data(folder: Path, name: JSON, limit: int = PICTURE_BYTES) -> str:
    """A picture or film beside the index as a data URL: only a plain name, so that it leads nowhere else."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w+:.-]{1,240}\.(png|mp4)", name):
        raise ValueError(f"{name!r} is no name of a picture")
    try:
        data = read_bounded(folder / name, limit)
    except OSError as error:
        raise RunError(f"cannot read {folder / name}: {reason(error)}") from None
    return f"data:{TYPES[name.rpartition('.')[2]]};base64,{base64.b64encode(data).decode()}"
