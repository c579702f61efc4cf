"""`ctrlformer reproduce`: an experiment of the paper from its plan to its table.

Its flags are declared here, and what it does is imported when it runs, so that --help stays instant.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ctrlformer.errors import ConfigError
from ctrlformer.paper.experiments import EXPERIMENTS, SCALES, named

if TYPE_CHECKING:
    from rich.console import Console

    from ctrlformer.paper.plan import Plan, PlannedRun, RunState
    from ctrlformer.sweep.schedule import Executor, Sweep

SOME_FAILED = 1  # exit code when runs failed and the table is without them


@dataclass(frozen=True)
class Reproduce:
    """Train a table or figure of the paper, resume it, and show it beside the paper's numbers."""

    experiment: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")] = None
    """Which one; --list shows them."""
    list_all: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="list")] = False
    """Show every experiment with its runs, and the scales."""
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the runs, frames, hours and disk it takes, and train nothing."""
    scale: str = "cpu"
    """paper: its presets, 500k frames, 5 seeds; cpu: compact settings, 100k frames, 2 seeds; smoke: toys, seconds."""
    seeds: int | None = None
    """Seeds 1 to N of every run; none takes the scale's."""
    tasks: str | None = None
    """Only curricula of these tasks, separated by commas."""
    methods: str | None = None
    """Only these methods, separated by commas."""
    frames: int | None = None
    """Simulator steps for each task; none takes the scale's."""
    out: Path = Path("runs", "reproduce")
    """Folder of the runs, their logs and the tables; experiments in one folder share runs."""
    jobs: int = 1
    """Runs at a time on this machine, each in a process of its own; 0 trains them one by one in this process."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS|local")] = None
    """Train on the Ray cluster at this address, or on one started here; all nodes must see the folder --out."""
    cpus_per_run: float = 1.0
    """Cores that Ray keeps for a run."""
    gpus_per_run: float = 0.0
    """GPUs that Ray keeps for a run; 0.5 lets two runs share one."""
    retries: int = 3
    """How often a run whose process or node died is resumed."""
    skip_calibration: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not time a few updates of every method first; the plan then tells no hours."""
    resnet_weights: Path | None = None
    """File of the ResNet-50's weights (docs/howto-resnet.md); without it resnet50_sac is left out."""

    def __call__(self) -> int:
        from rich.console import Console

        console = Console(highlight=False)
        if self.list_all:
            _show_list(console)
            return 0
        self._check()
        plan = self._plan()
        states = _states(plan, self.out)
        _say_plan(plan, states, console)
        left = {name: run for name, run in plan.runs.items() if states[name] != "finished"}
        _say_cost(left, self, console)
        if self.plan:
            return 0
        sweep = self._train(plan, states, console)
        self._tell(plan, console)
        for name in sweep.failed:
            _say(console, f"{sweep.statuses[name].state}: {name}: {sweep.statuses[name].reason}")
        return SOME_FAILED if sweep.failed else 0

    def _check(self) -> None:
        if self.experiment is None:
            raise ConfigError(f"no experiment: name one of {', '.join(EXPERIMENTS)}; --list shows them")
        for flag, value, low in (("jobs", self.jobs, 0), ("retries", self.retries, 0)):
            if value < low:
                raise ConfigError(f"--{flag} is {value}: it must be at least {low}")
        if not self.cpus_per_run > 0 or not self.gpus_per_run >= 0:
            raise ConfigError("--cpus-per-run must be above 0, and --gpus-per-run not below it")
        if self.resnet_weights and not self.resnet_weights.is_file():
            raise ConfigError(f"--resnet-weights {self.resnet_weights}: there is no such file")

    def _plan(self) -> Plan:
        from ctrlformer.paper.plan import Choice, make_plan

        choice = Choice(
            named("experiment", self.experiment or "", EXPERIMENTS),
            named("scale", self.scale, SCALES),
            methods=_words(self.methods),
            tasks=_words(self.tasks),
            seeds=self.seeds,
            frames=self.frames,
            weights=str(self.resnet_weights.resolve()) if self.resnet_weights else None,
        )
        return make_plan(choice)

    def _train(self, plan: Plan, states: Mapping[str, RunState], console: Console) -> Sweep:
        from ctrlformer.sweep.schedule import Sweep
        from ctrlformer.sweep.view import SweepView

        self.out.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            executor = self._executor(stack)
            # In this process each training has its own live line, and two cannot share a terminal.
            view = SweepView(plan.runs, self.out, console, states, live=self.jobs > 0 or self.ray is not None)
            sweep = Sweep(plan.runs, states, self.out, executor, stack.enter_context(view), self.retries)
            try:
                sweep.run()
            except (KeyboardInterrupt, SystemExit):
                _say(console, "stopped, and everything is saved: the same command resumes")
                raise
        return sweep

    def _executor(self, stack: contextlib.ExitStack) -> Executor:
        if self.ray is not None:
            from ctrlformer.sweep.ray_cluster import RayCluster

            cluster = RayCluster(self.ray, self.out, self.cpus_per_run, self.gpus_per_run)
            return stack.enter_context(contextlib.closing(cluster))
        if self.jobs == 0:
            from ctrlformer.sweep.in_process import ThisProcess

            return ThisProcess()
        from ctrlformer.sweep.processes import LocalProcesses

        return LocalProcesses(self.jobs)

    def _tell(self, plan: Plan, console: Console) -> None:
        from ctrlformer.paper import export
        from ctrlformer.paper.plan import RUNS
        from ctrlformer.paper.table import make_lines
        from ctrlformer.report.page import write_report
        from ctrlformer.storage.run_folder import CONFIG

        lines = make_lines(plan, self.out)
        written = export.write(plan, lines, self.out)
        export.show(plan, lines, console)
        folders = [self.out / RUNS / name for name in plan.runs if (self.out / RUNS / name / CONFIG).exists()]
        if folders:
            written.append(write_report(folders, self.out / f"{written[0].stem}.html"))
        _say(console, f"written: {', '.join(map(str, written))}")


def _states(plan: Plan, out: Path) -> dict[str, RunState]:
    from ctrlformer.paper.plan import state_of

    return {name: state_of(out, run, plan.runs) for name, run in plan.runs.items()}


def _say_plan(plan: Plan, states: Mapping[str, RunState], console: Console) -> None:
    experiment, scale = plan.choice.experiment, plan.choice.scale
    _say(console, f"{experiment.name}: {experiment.shows}")
    _say(console, f"scale {scale.name}: {scale.means}")
    for reason in plan.left_out:
        _say(console, reason)
    counts = Counter(states.values())
    said = ", ".join(f"{counts[state]} {state}" for state in ("finished", "begun", "new") if counts[state])
    _say(console, f"{len(plan.runs)} runs ({said}), {plan.frames:,} frames of each task, seeds 1 to {len(plan.seeds)}:")
    for name, run in plan.runs.items():
        _say(console, f"  {states[name]:<8}  {name}" + (f"  (continues {run.parent})" if run.parent else ""))


def _say_cost(left: Mapping[str, PlannedRun], asked: Reproduce, console: Console) -> None:
    """What is still to be trained, how long that takes, and the room it needs."""
    from ctrlformer.paper.plan import RUNS

    if not left:
        _say(console, "nothing is left to train")
        return
    _say(console, f"to train: {sum(run.frames for run in left.values()):,} frames, unfinished runs counted whole")
    if not asked.skip_calibration:
        _say_hours(left, asked, console)
    needed = sum(run.disk() for run in left.values()) / 1e9
    place = next(folder for folder in (asked.out, *asked.out.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free / 1e9
    short = "" if needed < free else ": TOO LITTLE"
    _say(
        console, f"disk: about {needed:.1f} GB in {asked.out / RUNS}, checkpoints on top; {free:.0f} GB are free{short}"
    )


def _say_hours(left: Mapping[str, PlannedRun], asked: Reproduce, console: Console) -> None:
    from ctrlformer.sweep.time_estimate import hours, measure_speeds

    speeds = measure_speeds(left.values(), lambda text: _say(console, text))
    total = hours(left.values(), speeds)
    beside = f", {total / asked.jobs:.1f} if {asked.jobs} do not slow each other" if asked.jobs > 1 else ""
    each = ", ".join(f"{method} {speed.step:.3f} s" for method, speed in speeds.items())
    _say(console, f"time: about {total:.1f} hours on this machine one after the other{beside}; a step takes: {each}")


def _show_list(console: Console) -> None:
    from ctrlformer.paper.plan import Choice, make_plan

    for experiment in EXPERIMENTS.values():
        _say(console, f"{experiment.name}: {experiment.shows}")
        _say(console, f"  methods: {', '.join(experiment.methods)}")
        for curriculum in experiment.curricula:
            _say(console, f"  learns: {curriculum}")
        counts = [
            f"{len(make_plan(Choice(experiment, scale, weights='')).runs)} at --scale {scale.name}"
            for scale in SCALES.values()
        ]
        _say(console, f"  runs: {', '.join(counts)}")
    for scale in SCALES.values():
        _say(console, f"scale {scale.name}: {scale.means}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _words(text: str | None) -> list[str]:
    """
    >>> _words("drq, ctrlformer"), _words(None)
    (['drq', 'ctrlformer'], [])
    """
    return [word.strip() for word in (text or "").split(",") if word.strip()]
