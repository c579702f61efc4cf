"""The runs of an experiment: each trained once, named after its settings, and continuing from the stages it shares.

A run learns one stage. A curriculum of several is a chain of runs, each of which continues a copy of the one before,
so that the first task is trained once for all that follow it, in this experiment and in any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from ctrlformer.config import Config, StageConfig, differences
from ctrlformer.config.presets import PRESETS, make_config
from ctrlformer.config.stored_frames import stored_frame
from ctrlformer.envs.tasks import action_repeat, canonical_task
from ctrlformer.errors import ConfigError, RunError
from ctrlformer.paper.experiments import WEIGHTS, Curriculum, Experiment, MethodSettings, Scale, check_names
from ctrlformer.storage.run_folder import CONFIG, RunFolder

RUNS = "runs"
"""Folder of the runs inside `--out`."""
DECIDED_AT_START = {"training.precision", WEIGHTS, "encoder.weights_sha256"}  # a run's config has them filled in

RunState = Literal["new", "begun", "finished"]


@dataclass(frozen=True)
class PlannedRun:
    """One training of one stage."""

    name: str
    method: str
    config: Config
    """The whole curriculum up to this stage."""
    parent: str | None
    """The run that it continues."""

    @property
    def stage(self) -> StageConfig:
        """What this run itself trains."""
        return self.config.stages[-1]

    @property
    def frames(self) -> int:
        return self.stage.frames * len(self.stage.tasks)

    @property
    def steps(self) -> int:
        """Decisions of the agent, each with its updates."""
        return sum(self.stage.frames // self.repeat(task) for task in self.stage.tasks)

    def repeat(self, task: str) -> int:
        return self.config.env.action_repeat or action_repeat(task)

    def disk(self) -> int:
        """Bytes of its replay and of the observations it keeps of this and earlier tasks; checkpoints come on top."""
        frame = stored_frame(self.config).bytes
        capacity = self.config.training.replay_capacity
        replay = sum(min(capacity, self.stage.frames // self.repeat(task)) * frame for task in self.stage.tasks)
        kept = self.stage.transfer.kept_observations * self.config.env.frame_stack * frame  # whole stacks
        return replay + kept * len(self.config.all_tasks)


@dataclass(frozen=True)
class Choice:
    """What part of an experiment is wanted, and how large; none leaves it to the scale."""

    experiment: Experiment
    scale: Scale
    methods: Sequence[str] = ()
    """The paper's names; empty takes all."""
    tasks: Sequence[str] = ()
    """Only curricula of these tasks, by the paper's names; empty takes all."""
    seeds: int | None = None
    frames: int | None = None
    weights: str | None = None
    """File of the ResNet's weights."""


@dataclass(frozen=True)
class Plan:
    """An experiment's runs, each after the one that it continues."""

    choice: Choice
    methods: Mapping[str, str]
    """Those of the experiment's that can be trained."""
    curricula: tuple[Curriculum, ...]
    runs: Mapping[str, PlannedRun]
    places: Mapping[tuple[str, Curriculum, int], str]
    """Which run ends what curriculum, by the scale's method and the seed."""
    left_out: tuple[str, ...]
    """Why some methods are missing."""

    @property
    def seeds(self) -> range:
        return range(1, 1 + (self.choice.seeds or self.choice.scale.seeds))

    @property
    def frames(self) -> int:
        return self.choice.frames or self.choice.scale.frames

    def batch_size(self, method: str) -> int:
        """Transitions, or sequences, in an update of a method by the paper's name."""
        return _settings(self.choice, self.methods[method]).agent.batch_size

    def named_run(self, method: str, curriculum: Curriculum, seed: int) -> PlannedRun | None:
        """The run that ends the curriculum, for a method by the paper's name; none if it is not planned."""
        place = self.methods.get(method, ""), curriculum, seed
        return self.runs[self.places[place]] if place in self.places else None


def make_plan(choice: Choice) -> Plan:
    """Every run of the choice; a `ConfigError` if it makes no sense or nothing is left of it."""
    _check(choice)
    methods, left_out = _trainable(choice)
    wanted = set(choice.tasks)
    curricula = tuple(one for one in choice.experiment.curricula if not wanted or wanted.issuperset(one.tasks))
    plan = Plan(choice, methods, curricula, {}, {}, tuple(left_out))
    runs: dict[str, PlannedRun] = {}
    places: dict[tuple[str, Curriculum, int], str] = {}
    for method in methods.values():
        settings = _settings(choice, method)
        for curriculum, seed in product(curricula, plan.seeds):
            for end, run in _chain(choice, method, dataclasses.replace(settings, seed=seed), curriculum):
                runs.setdefault(run.name, run)
                places[method, end, seed] = run.name
    if not runs:
        raise ConfigError("; ".join(["nothing is left to run", *left_out]) + ": choose other --tasks or --methods")
    return dataclasses.replace(plan, runs=runs, places=places)


def state_of(out: Path, run: PlannedRun, runs: Mapping[str, PlannedRun]) -> RunState:
    """How far the run is; a folder with other settings than planned is a `RunError`."""
    folder = out / RUNS / run.name
    if not (folder / CONFIG).exists():
        return "new"
    found = RunFolder.open(folder)
    if is_half_copied(found, runs[run.parent].config if run.parent else None):
        return "new"
    check_as_planned(found, run.config)
    return "finished" if found.stages_done() >= len(run.config.stages) else "begun"


def check_as_planned(found: RunFolder, planned: Config) -> None:
    """A `RunError` if the run has other settings."""
    different = _other_settings(found.config, planned)
    if different:
        raise RunError(
            f"{found.path} was trained with other settings than planned now ({', '.join(different)}): choose another"
            " --out, or remove it"
        )


def is_half_copied(found: RunFolder, parent: Config | None) -> bool:
    """Whether it is a copy of the run before that was cut off: it has not been given its own stage yet."""
    return parent is not None and not _other_settings(found.config, parent)


def _other_settings(found: Config, planned: Config) -> list[str]:
    return sorted(set(differences(found, planned)) - DECIDED_AT_START)


def _check(choice: Choice) -> None:
    check_names("method", choice.methods, choice.experiment.methods)
    tasks = dict.fromkeys(task for curriculum in choice.experiment.curricula for task in curriculum.tasks)
    check_names("task of this experiment", choice.tasks, tasks)
    if choice.seeds is not None and choice.seeds < 1:
        raise ConfigError(f"--seeds is {choice.seeds}: it must be at least 1")
    if choice.frames is not None and choice.frames < 1:
        raise ConfigError(f"--frames is {choice.frames}: it must be at least 1")


def _trainable(choice: Choice) -> tuple[dict[str, str], list[str]]:
    """The methods that can be trained here, and why others cannot."""
    methods, left_out = {}, []
    for paper_name, name in choice.experiment.methods.items():
        if choice.methods and paper_name not in choice.methods:
            continue
        method = choice.scale.methods[name]
        if _needs_weights(method) and choice.weights is None:
            left_out.append(f"{paper_name} is left out: it needs --resnet-weights FILE (docs/howto-resnet.md)")
        else:
            methods[paper_name] = name
    return methods, left_out


def _needs_weights(method: MethodSettings) -> bool:
    kind: str = method.overrides.get("encoder.kind", PRESETS[method.preset].encoder.kind)
    return kind == "resnet50"


def _settings(choice: Choice, name: str) -> Config:
    """The method's settings, without tasks and seed."""
    method = choice.scale.methods[name]
    overrides = {**method.overrides, **choice.scale.settings}
    if _needs_weights(method):
        overrides[WEIGHTS] = choice.weights
    return make_config((), method.preset, choice.frames or choice.scale.frames, 1, overrides)


def _chain(
    choice: Choice, method: str, settings: Config, curriculum: Curriculum
) -> Iterator[tuple[Curriculum, PlannedRun]]:
    """The runs that lead to the curriculum's end, the first one first, each with the part of it that it ends."""
    scale = choice.scale
    tasks = tuple(canonical_task(scale.stand_ins.get(task, task)) for task in curriculum.tasks)
    shared = _first_alike(scale, method)
    if curriculum.before_last is None:
        config = dataclasses.replace(settings, tasks=tasks, together=curriculum.together)
        yield curriculum, PlannedRun(_run_name(scale, shared, config), shared, config, None)
        return
    for part, before in _chain(choice, method, settings, curriculum.before_last):
        yield part, before
    transfer = dataclasses.replace(settings.transfer, **scale.methods[method].transfer)
    stage = StageConfig((tasks[-1],), settings.training.frames, transfer)
    config = dataclasses.replace(before.config, added=(*before.config.added, stage))
    yield curriculum, PlannedRun(_run_name(scale, shared, config), shared, config, before.name)


def _first_alike(scale: Scale, name: str) -> str:
    """The first of the scale's methods with the same first stage: runs that are the same bear the same name."""
    method = scale.methods[name]
    alike = (one for one, other in scale.methods.items() if _first_stage(other) == _first_stage(method))
    return next(alike)


def _first_stage(method: MethodSettings) -> tuple[str, dict[str, object]]:
    return method.preset, dict(method.overrides)


def _run_name(scale: Scale, method: str, config: Config) -> str:
    """What the run is, in a file name: scale, method, tasks, what is special about the transfer, frames, seed."""
    tasks = ("-with-" if config.together else "-then-").join(task.replace("/", "_") for task in config.all_tasks)
    special = differences(config.transfer, config.stages[-1].transfer)
    words = [f"{setting}_{value}" for setting, (_, value) in special.items()]
    return "-".join([scale.name, method, tasks, *words, _short(config.training.frames), f"seed{config.seed}"])


def _short(frames: int) -> str:
    """
    >>> _short(500_000), _short(120)
    ('500k', '120')
    """
    return f"{frames // 1000}k" if frames % 1000 == 0 else f"{frames}"
