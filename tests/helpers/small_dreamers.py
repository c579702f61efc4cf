"""Dreamers small enough for tests, every part real."""

from __future__ import annotations

from typing import Any

from small_runs import SETTINGS

from ctrlformer.api import make_config
from ctrlformer.config import Config

SMALL: dict[str, Any] = {
    "dreamer.frame_size": 16,
    "dreamer.conv_width": 2,
    "dreamer.deterministic": 8,
    "dreamer.stochastic": 4,
    "dreamer.hidden": 8,
    "dreamer.head_width": 8,
    "dreamer.sequence_length": 5,
    "dreamer.horizon": 3,
    "dreamer.free_nats": 0.0,  # below them nothing is learnt of the prior
    "agent.update_every": 2,
    "training.replay_capacity": 1000,
}


def small_dreamer(*tasks: str, **changes: Any) -> Config:
    settings = SETTINGS | SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    return make_config(tasks or ("toy/reach",), "dreamer", None, 1, settings)
