"""Agents: they act, and they learn from batches."""

from __future__ import annotations

import torch

from ctrlformer.agents.base import Agent, Policy
from ctrlformer.agents.dreamer.agent import DreamerAgent
from ctrlformer.agents.sac.agent import SacAgent
from ctrlformer.agents.sizes import check_size
from ctrlformer.config import Config

__all__ = ["Agent", "DreamerAgent", "Policy", "SacAgent", "make_agent"]


def make_agent(config: Config, device: torch.device | str = "cpu", seed: int = 0, compiled: bool = False) -> Agent:
    """The agent that the config names, without tasks yet; `compiled` is for those that can gain from it."""
    check_size(config)
    if config.agent.kind == "dreamer":
        return DreamerAgent(config, device, seed)
    return SacAgent(config, device, seed, compiled)
