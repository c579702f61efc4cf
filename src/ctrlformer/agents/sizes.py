"""What an agent's networks need of the memory, known before they are made."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ctrlformer.agents.dreamer.heads import DreamerHeads
from ctrlformer.agents.dreamer.world_model import WorldModel
from ctrlformer.agents.sac.heads import Contrast, TaskHeads
from ctrlformer.config import Config
from ctrlformer.config.stored_frames import stored_frame
from ctrlformer.encoders import make_encoder
from ctrlformer.errors import ConfigError
from ctrlformer.system.memory import memory_bytes

COPIES = 4  # of every number: the weight, its gradient and Adam's two moments; targets come on top


def check_size(config: Config) -> None:
    """Refuse networks that this machine cannot hold: settings may come from a file that someone else made."""
    needed, there = COPIES * network_bytes(config), memory_bytes()
    if needed > there:
        raise ConfigError(
            f"the networks of these settings need {needed / 1e9:.1f} GB, and this machine has {there / 1e9:.1f} GB:"
            f" lower {'dreamer.deterministic' if config.agent.kind == 'dreamer' else 'encoder.dim'} and the like"
        )


def network_bytes(config: Config) -> int:
    """Of all weights, counted without making them."""
    with torch.device("meta"):
        shared, task = _dreamer(config) if config.agent.kind == "dreamer" else _sac(config)
    return shared + len(config.all_tasks) * task


def _sac(config: Config) -> tuple[int, int]:
    encoder = make_encoder(config.encoder, config.env)
    contrast = Contrast(config.agent, encoder.contrastive_dim, encoder.projection)
    shared = _bytes(encoder.parameters()) + _bytes(contrast.parameters())
    heads = TaskHeads(config.agent, encoder.features, 1, encoder.projection)
    return shared, _bytes(heads.parameters()) + _bytes(encoder.add_task())


def _dreamer(config: Config) -> tuple[int, int]:
    world = WorldModel(config.dreamer, stored_frame(config).size)
    heads = DreamerHeads(config.dreamer, world.latent.features, action_dim=1)
    return _bytes(world.parameters()), _bytes(heads.parameters())


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)
