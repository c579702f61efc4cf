"""Start a training in a new run folder, or continue one: everything that happens before the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ctrlformer.config import Config, StageConfig, TransferConfig
from ctrlformer.config.transfer import SOURCES
from ctrlformer.encoders.weights import with_checked_weights
from ctrlformer.envs import canonical_task, pixel_fingerprint, typed_task
from ctrlformer.envs.gl import use_backend
from ctrlformer.errors import CheckpointError, ConfigError, RunError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.system.device import choose_device, choose_precision
from ctrlformer.system.memory import keep_freed_memory
from ctrlformer.training.callbacks import Callback, CallbackList
from ctrlformer.training.loggers import check_loggers
from ctrlformer.training.memory_check import check_memory, remembered_bytes
from ctrlformer.training.signals import StopRequest
from ctrlformer.training.state import TrainerState
from ctrlformer.training.trainer import Trainer


def start(
    config: Config, folder: Path | None, *, callbacks: Sequence[Callback] = (), exit_within: float | None = None
) -> RunFolder:
    """Train from the beginning in a new run folder; validate everything before creating it."""
    tasks = tuple(typed_task(task) for task in config.tasks)
    config = dataclasses.replace(config, tasks=tasks, transfer=_with_typed_source(config.transfer))
    if not config.tasks:
        raise ConfigError("no task to learn: name at least one; `ctrlformer tasks` lists them")
    check_loggers(config)
    CallbackList(callbacks)
    with StopRequest(exit_within) as stop:
        config = _with_weights(_with_precision(config))
        device = choose_device(config.training.device)
        check_memory(config, config.stages, device, remembered_bytes(config, device))
        facts = _facts(config)
        run = RunFolder.create(folder or default_folder(config), config)
        with run.lock():
            run.write_environment(**facts)
            _prepare_process(config)
            Trainer(run, callbacks, stop).learn()
    return run


def resume(
    folder: Path,
    *,
    callbacks: Sequence[Callback] = (),
    exit_within: float | None = None,
    patience: float | None = None,
) -> RunFolder:
    """Continue exactly where the run in `folder` stopped; a finished one stays as it is.

    `patience` is how many seconds to wait for another process that holds the run, here and in `add`.
    """
    run = RunFolder.open(folder)
    check_loggers(run.config)
    _with_weights(run.config)  # a file that is gone, or is another, stops here
    check_memory(run.config, run.config.stages[run.stages_done() :], choose_device(run.config.training.device))
    say = CallbackList(callbacks).on_message
    with run.lock(patience), StopRequest(exit_within) as stop:
        _check_machine(run, say)
        _continue(run, callbacks, stop)
    return run


def add(
    folder: Path,
    task: str,
    *,
    frames: int | None = None,
    transfer: TransferConfig | None = None,
    into: Path | None = None,
    callbacks: Sequence[Callback] = (),
    exit_within: float | None = None,
    patience: float | None = None,
) -> RunFolder:
    """Train one more stage on the finished run in `folder`, or on a copy of it at `into`.

    Without `frames` or `transfer` the run's own settings hold. Validate everything before anything changes.
    """
    run = RunFolder.open(folder)
    check_loggers(run.config)
    own = _with_weights(run.config)
    budget = own.training.frames if frames is None else frames
    stage = StageConfig((typed_task(task),), budget, _with_typed_source(transfer or own.transfer))
    config = dataclasses.replace(own, added=(*own.added, stage))
    check_memory(config, (stage,), choose_device(config.training.device))
    pixel_fingerprint(config.env, stage.tasks[0])  # a task that cannot be shown fails here
    say = CallbackList(callbacks).on_message
    with StopRequest(exit_within) as stop, ExitStack() as held:
        held.enter_context(run.lock(patience))
        _require_finished(run)
        if into is not None:
            run = run.copy(into)
            held.close()  # of what was copied: others may copy it too while this one learns
            held.enter_context(run.lock())
        _check_machine(run, say)
        run.extend(config)
        run.write_environment(**_facts(config))
        _continue(run, callbacks, stop)
    return run


def _require_finished(run: RunFolder) -> None:
    state = TrainerState.read(checkpoint.load(run.checkpoints), run.config)
    if state.position.stage < len(run.config.stages):
        raise RunError(f"{run.path} has not finished its tasks: `ctrlformer resume {run.path}` first")


def _check_machine(run: RunFolder, say: Callable[[str], None]) -> None:
    """Record what the run continues on, and warn of what is other than before."""
    before = run.read_environment()
    run.write_environment(**_facts(run.config))
    for change in changed_facts(before, run.read_environment()):
        say(f"warning: {change} since the run last ran; it continues, but perhaps not exactly")


def _continue(run: RunFolder, callbacks: Sequence[Callback], stop: StopRequest) -> None:
    _prepare_process(run.config)
    _restored(run, callbacks, stop).learn()


def _restored(run: RunFolder, callbacks: Sequence[Callback], stop: StopRequest) -> Trainer:
    """Return a trainer at the newest checkpoint whose replay is sound as well."""

    def restored(saved: checkpoint.Checkpoint) -> Trainer:
        trainer = Trainer(run, callbacks, stop)
        trainer.restore(saved)
        return trainer

    try:
        return checkpoint.load_as(restored, run.checkpoints, CallbackList(callbacks).on_message)
    except CheckpointError:
        if run.read_metrics() or run.read_evals():
            raise
    return Trainer(run, callbacks, stop)  # killed before its first checkpoint


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two environment.json and can change the numbers, in words.

    >>> changed_facts({"pixels": "a", "cores": 2}, {"pixels": "b", "cores": 2})
    ["pixels changed from 'a' to 'b'"]
    """
    names = ("device", "gl", "pixels", "cores", "python", "versions", "commit")
    return [
        f"{name} changed from {before.get(name)!r} to {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _facts(config: Config) -> dict[str, Any]:
    """What `write_environment` wants to know; draws every task once, so one that cannot be shown fails here."""
    device = choose_device(config.training.device)
    pixels = "+".join(pixel_fingerprint(config.env, task) for task in config.all_tasks)
    only_toys = all(task.startswith("toy/") for task in config.all_tasks)  # these draw without OpenGL
    return {"device": str(device), "gl": None if only_toys else use_backend(), "pixels": pixels}


def _with_precision(config: Config) -> Config:
    """The config with its precision decided: a resume must not decide again."""
    precision = choose_precision(config.training.precision, choose_device(config.training.device))
    return dataclasses.replace(config, training=dataclasses.replace(config.training, precision=precision))


def _with_weights(config: Config) -> Config:
    """The config with the checksum of its weights file, if it needs one: a resume takes no other."""
    return dataclasses.replace(config, encoder=with_checked_weights(config.encoder))


def _with_typed_source(transfer: TransferConfig) -> TransferConfig:
    """With the canonical name of the source, if it is a task."""
    source = transfer.source if transfer.source in SOURCES else canonical_task(transfer.source)
    return dataclasses.replace(transfer, source=source)


def _prepare_process(config: Config) -> None:
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")  # lets GPUs use TF32; a CPU computes as before
    if config.training.threads:
        torch.set_num_threads(config.training.threads)


def default_folder(config: Config) -> Path:
    """runs/<task>-<preset>-seed<S>, numbered if taken."""
    more = f"+{len(config.tasks) - 1}" if len(config.tasks) > 1 else ""
    more += "-together" if config.together else ""
    name = f"{config.tasks[0].replace('/', '-')}{more}-{config.preset}-seed{config.seed}"
    folder, number = Path("runs", name), 1
    while folder.exists():
        number += 1
        folder = Path("runs", f"{name}-{number}")
    return folder
