"""What a page tells of one run: read from its folder, of whatever version its settings are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctrlformer.config import Config, differences, from_json
from ctrlformer.errors import ConfigError, RunError
from ctrlformer.files import JSON, read_bounded
from ctrlformer.measures import LARGEST_COUNT, RunScores
from ctrlformer.presets import PRESETS
from ctrlformer.report.explained import Explained, read_explained
from ctrlformer.runs import CONFIG, ENVIRONMENT, EVALS, METRICS, SMALL_FILE_BYTES, Row, each_row, read_object, read_rows

MOST_ROWS = 1023  # so that one more is an even number
TRANSFER = "transfer."
METHOD_SECTIONS = ("env.", "encoder.", "agent.", TRANSFER)  # what makes a method: not where and how long it runs


@dataclass(frozen=True)
class ToldRun:
    """One run folder."""

    name: str
    settings: Mapping[str, JSON]
    """config.json as it is."""
    config: Config | None
    """The same understood; none if it is of another version."""
    environment: Mapping[str, JSON]
    evals: tuple[Row, ...]
    metrics: tuple[Row, ...]
    """Thinned: what is drawn of them is far less, and a page is written after every evaluation."""
    explained: Explained

    @classmethod
    def read(cls, folder: Path) -> ToldRun:
        """A folder without config.json is not a run; one without evaluations has just begun."""
        settings = read_object(folder / CONFIG)
        if settings is None:
            raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
        return cls(
            folder.resolve().name,
            settings,
            _understood(folder / CONFIG),
            read_object(folder / ENVIRONMENT) or {},
            tuple(read_rows(folder / EVALS)),
            tuple(thinned(each_row(folder / METRICS))),
            read_explained(folder.resolve().name, folder),
        )

    @cached_property
    def scores(self) -> RunScores | None:
        """Its evaluations, checked; none if there are none yet."""
        return RunScores.of(self.name, self.seed, self.evals) if self.evals else None

    @property
    def seed(self) -> int | None:
        seed = self.settings.get("seed")
        return seed if type(seed) is int else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """In the order of learning; of a run that cannot be understood, those that were evaluated."""
        if self.config is not None:
            return self.config.all_tasks
        return tuple(self.scores.stages) if self.scores else ()

    @cached_property
    def method(self) -> str:
        """The preset and what is changed in it: runs of one method differ in seed, tasks and budget only."""
        return self._named(METHOD_SECTIONS)

    @cached_property
    def plain_method(self) -> str:
        """The method but for how it transfers, of which a first stage knows nothing."""
        return self._named(tuple(section for section in METHOD_SECTIONS if section != TRANSFER))

    def _named(self, sections: tuple[str, ...]) -> str:
        preset = str(self.settings.get("preset", "unknown"))
        changes = [f"{name} {_told(value)}" for name, (_, value) in self.changes.items() if name.startswith(sections)]
        return ", ".join([preset, *changes])

    @cached_property
    def changes(self) -> dict[str, tuple[JSON, JSON]]:
        """Settings other than the preset's, with the preset's value first; those of added stages count too."""
        if self.config is None or self.config.preset not in PRESETS:
            return {}
        found = differences(PRESETS[self.config.preset], self.config)
        for stage in self.config.added:
            found |= differences(PRESETS[self.config.preset].transfer, stage.transfer, "transfer.")
        return {name: values for name, values in found.items() if name not in ("tasks", "seed", "added")}

    @property
    def minutes(self) -> float:
        rows = [row.get("minutes") for row in (*self.evals[-1:], *self.metrics[-1:])]
        known = [float(value) for value in rows if isinstance(value, int | float) and 0 <= value < LARGEST_COUNT]
        return max(known, default=0.0)

    @property
    def budget(self) -> int | None:
        """Frames of all tasks together, as planned."""
        if self.config is None:
            return None
        return sum(stage.frames * len(stage.tasks) for stage in self.config.stages)

    @property
    def finished(self) -> bool:
        """Whether every planned task has its last evaluation."""
        finals = {row.get("task") for row in self.evals if row.get("kind") == "final"}
        return bool(finals) and finals.issuperset(self.tasks)


def read_runs(folders: Sequence[Path]) -> list[ToldRun]:
    """Every run, with a name of its own: two folders of one name are told apart by number."""
    if not folders:
        raise RunError("no run to report: name at least one run folder")
    runs: list[ToldRun] = []
    for folder in folders:
        run = ToldRun.read(folder)
        same = sum(run.name in (other.name, other.name.rpartition(" (")[0]) for other in runs)
        runs.append(dataclasses.replace(run, name=f"{run.name} ({same + 1})") if same else run)
    return runs


def thinned(rows: Iterable[Row]) -> list[Row]:
    """At most `MOST_ROWS` training figures, evenly spread up to the last: every second one goes whenever there are
    more. Its seconds are added to those of the next, which then tells of the time of both."""
    kept: list[Row] = []
    apart = 1  # rows of the log from one that is kept to the next
    waiting: Row | None = None  # left out so far, since the last that was kept
    for number, row in enumerate(rows, start=1):
        row = row if waiting is None else _together(waiting, row)
        waiting = row if number % apart else None
        if waiting is None:
            kept.append(row)
        if len(kept) > MOST_ROWS:
            kept, apart = [_together(*pair) for pair in zip(kept[::2], kept[1::2], strict=True)], 2 * apart
    return kept if waiting is None else [*kept, waiting]


def _together(before: Row, row: Row) -> Row:
    first, second = before.get("seconds"), row.get("seconds")
    return row | {"seconds": first + second} if type(first) is type(second) is float else row


def _told(value: JSON) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _understood(path: Path) -> Config | None:
    try:
        return from_json(read_bounded(path, SMALL_FILE_BYTES).decode())
    except (ConfigError, OSError, UnicodeDecodeError):
        return None
