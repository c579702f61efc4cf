"""What the page shows of one run: read from its folder, whatever version its settings have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ctrlformer.analysis.methods import RunSettings
from ctrlformer.analysis.metrics import LARGEST_COUNT, RunScores
from ctrlformer.config import Config
from ctrlformer.errors import RunError
from ctrlformer.report.attention import Explained, read_explained
from ctrlformer.storage.files import JSON
from ctrlformer.storage.run_folder import CONFIG, ENVIRONMENT, EVALS, METRICS, Row, each_row, read_object, read_rows

MOST_ROWS = 1023  # so that one more is an even number


@dataclass(frozen=True)
class ReportRun:
    """One run folder."""

    name: str
    settings: RunSettings
    environment: Mapping[str, JSON]
    evals: tuple[Row, ...]
    metrics: tuple[Row, ...]
    """Thinned: what is drawn of them is far less, and a page is written after every evaluation."""
    explained: Explained

    @classmethod
    def read(cls, folder: Path) -> ReportRun:
        """A folder without config.json is not a run; one without evaluations has just begun."""
        settings = RunSettings.read(folder)
        if settings.raw is None:
            raise RunError(f"{folder} is not a run folder: it has no {CONFIG}")
        return cls(
            folder.resolve().name,
            settings,
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
    def config(self) -> Config | None:
        """None if config.json is of another version."""
        return self.settings.config

    @property
    def seed(self) -> int | None:
        seed = (self.settings.raw or {}).get("seed")
        return seed if type(seed) is int else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """In the order of learning; of a run that cannot be understood, those that were evaluated."""
        if self.config is not None:
            return self.config.all_tasks
        return tuple(self.scores.stages) if self.scores else ()

    @property
    def method(self) -> str:
        """The preset and what is changed in it: runs of one method differ in seed, tasks and budget only."""
        return self.settings.method.name

    @property
    def plain_method(self) -> str:
        """The method but for how it transfers, of which a first stage knows nothing."""
        return self.settings.plain_method.name

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


def read_runs(folders: Sequence[Path]) -> list[ReportRun]:
    """Every run, with a name of its own: two folders of one name are distinguished by number."""
    if not folders:
        raise RunError("no run to report: name at least one run folder")
    runs: list[ReportRun] = []
    for folder in folders:
        run = ReportRun.read(folder)
        same = sum(run.name in (other.name, other.name.rpartition(" (")[0]) for other in runs)
        runs.append(dataclasses.replace(run, name=f"{run.name} ({same + 1})") if same else run)
    return runs


def thinned(rows: Iterable[Row]) -> list[Row]:
    """Return at most `MOST_ROWS` rows of metrics, evenly spread up to the last: every second one goes whenever there
    are more. Its seconds are added to those of the next, which then has the time of both."""
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
