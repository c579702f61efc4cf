"""What a training will need of memory, compared with what there is before it begins.

Only what is certain is counted: the frames that the replays will hold, the batches that are held at once and, where it
was measured, what the encoder remembers of a batch between forward and backward. Networks and passing results come on
top, so a training that is let in can still be too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ctrlformer.agents.sizes import check_size
from ctrlformer.config import Config, StageConfig
from ctrlformer.config.stored_frames import stored_frame
from ctrlformer.encoders import Encoder, make_encoder
from ctrlformer.envs.tasks import action_repeat
from ctrlformer.errors import ConfigError
from ctrlformer.nn.seeding import reproducible
from ctrlformer.replay import ring_bytes
from ctrlformer.replay.stack_kernel import CHANNELS
from ctrlformer.system.device import choose_precision
from ctrlformer.system.memory import fits_on_device, free_memory

HELD = 2  # batches of a step: those being learnt from, and those being drawn beside
FEW_ACTIONS = 1  # the real number is not known yet, and makes no difference beside the frames


def check_memory(config: Config, stages: Sequence[StageConfig], device: torch.device, remembered: int = 0) -> None:
    """Refuse stages whose replays and batches cannot fit: a `ConfigError` with the size and the setting to change.

    `remembered` is what `remembered_bytes` found, if it was asked.
    """
    batches = batch_bytes(config) + remembered
    for stage in stages:
        replays = sum(replay_bytes(config, stage, task) for task in stage.tasks)
        on_device = device.type == "cuda" and (
            config.training.replay_on == "device"
            or (config.training.replay_on == "auto" and fits_on_device(replays, device))
        )
        if device.type == "cuda":
            _check(config, replays if on_device else 0, batches, torch.cuda.mem_get_info(device)[0])
        host = (0 if on_device else replays, 0 if device.type == "cuda" else batches)
        _check(config, *host, free_memory())
        whole = len(stage.tasks) * _ring(config, config.training.replay_capacity)
        if not on_device and not _can_reserve(whole):
            raise _too_large(config, whole, "which this machine does not give", "--training.replay-capacity")


def replay_bytes(config: Config, stage: StageConfig, task: str) -> int:
    """Memory of a task's replay at its fullest: a stage shorter than its capacity does not fill it."""
    repeat = config.env.action_repeat or action_repeat(task)
    return _ring(config, min(config.training.replay_capacity, math.ceil(stage.frames / repeat)))


def batch_bytes(config: Config) -> int:
    """Memory of the batches that are held at once."""
    settings = config.agent
    shown = 4 if settings.q_regularisation else 3 if settings.contrastive else 2
    frames = config.dreamer.sequence_length if settings.kind == "dreamer" else shown * config.env.frame_stack
    repeats = [config.env.action_repeat or action_repeat(task) for task in config.all_tasks]
    updates = max(settings.update_rounds(repeat)[1] for repeat in repeats)
    return HELD * updates * settings.batch_size * frames * stored_frame(config).bytes


def remembered_bytes(config: Config, device: torch.device) -> int:
    """What an update's pass through the encoder keeps for its backward pass: measured, since it depends on every layer.

    That takes as long as a look at three observations, so only for settings that a person has typed. On GPUs, where
    other kernels keep other things, nothing is counted.
    """
    settings = config.agent
    if device.type != "cpu" or settings.kind == "dreamer" or stored_frame(config).features is not None:
        return 0
    check_size(config)
    with reproducible(0):
        encoder = make_encoder(config.encoder, config.env)
        encoder.add_task(None)
    encoder.bf16 = choose_precision(config.training.precision, device) == "bf16"
    views = 2 if settings.q_regularisation else 1  # those of s: the only ones with gradient
    return views * settings.batch_size * (_remembered(encoder, config, 2) - _remembered(encoder, config, 1))


def _remembered(encoder: Encoder, config: Config, observations: int) -> int:
    own = {tensor.untyped_storage().data_ptr() for tensor in encoder.parameters()}
    sizes: dict[int, int] = {}  # by address: several operations may keep the same tensor

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    size = config.env.image_size
    seen = torch.zeros(observations, size, size, CHANNELS * config.env.frame_stack, dtype=torch.uint8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tokens = encoder(seen, 0)
    del tokens  # only now: while it lives, no address is used twice
    return sum(sizes.values())


def _ring(config: Config, steps: int) -> int:
    frame = stored_frame(config)
    return ring_bytes(steps, FEW_ACTIONS, frame.size, config.env.frame_stack, frame.features)


def _check(config: Config, replays: int, batches: int, free: int | None) -> None:
    if free is not None and replays + batches > free:
        setting = "--training.replay-capacity" if replays >= batches else "--agent.batch-size"
        raise _too_large(config, replays + batches, f"{_gigabytes(free)} are free", setting)


def _too_large(config: Config, needed: int, there_is: str, setting: str) -> ConfigError:
    return ConfigError(
        f"replays of {config.training.replay_capacity:,} steps and batches of {config.agent.batch_size:,} need"
        f" {_gigabytes(needed)} of memory, {there_is}: lower {setting}"
    )


def _can_reserve(size: int) -> bool:
    """Whether the system lets a process ask for so many bytes; none of them is touched."""
    try:
        np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        return False
    return True


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
