"""Commands that look at runs: `eval`, `scores`, `report` and `explain`, each imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ctrlformer.cli.arguments import Modules, Run


@dataclass(frozen=True)
class Eval:
    """Score a run's newest checkpoint with the mean action."""

    run: Run
    """Run folder."""
    task: str | None = None
    """Only this task; none scores every task the run has learnt."""
    episodes: int = 10
    """Episodes of each task."""
    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also film one episode of each task into the run folder."""
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    def __call__(self) -> None:
        from ctrlformer.api import evaluate

        for score in evaluate(self.run, task=self.task, episodes=self.episodes, video=self.video):
            print(score)


@dataclass(frozen=True)
class Scores:
    """Print scores, forgetting and transfer of runs, with intervals over seeds."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run folders of one curriculum with different seeds; runs with other settings are scored apart."""
    scratch: tuple[Path, ...] = ()
    """Runs with the same settings that learnt the later tasks alone, to compare the transfer with."""
    frames: int | None = None
    """Compare at this many frames of a task; none takes what all runs have reached."""
    maximum: float = 1000.0
    """Highest return of an episode: what forward transfer is measured against."""
    json: Path | None = None
    """Also write the numbers to this file."""

    def __call__(self) -> None:
        from ctrlformer.cli.scores import main

        main(list(self.runs), list(self.scratch), self.frames, self.json, self.maximum)


@dataclass(frozen=True)
class Report:
    """Make one HTML page of any set of runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run folders; runs that differ in their seeds only are drawn as one line."""
    out: Path | None = None
    """The page; none writes RUN/report.html for a single run, and report.html here for several."""

    def __call__(self) -> None:
        from ctrlformer.report.page import REPORT, write_report

        alone = self.runs[0] / REPORT if len(self.runs) == 1 else Path(REPORT)
        print(write_report(self.runs, self.out or alone))


@dataclass(frozen=True)
class Explain:
    """Show what a run's agent looks at, and how similar its tasks are to it: pictures into RUN/explain."""

    run: Run
    """Run folder."""
    task: str | None = None
    """Only this task; none explains every task the run has learnt."""
    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also film an episode of each task with its attention."""
    modules: Modules = ()
    """Import these first: a run does not import by itself the module of a task such as gym/my_package:MyTask-v0."""

    def __call__(self) -> None:
        from ctrlformer.explain.explain_run import main

        print(main(self.run, self.task, self.video, print))
