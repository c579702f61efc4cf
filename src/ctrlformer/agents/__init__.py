"""Agents: they act, and they learn from batches."""

from ctrlformer.agents.sac import SacAgent

__all__ = ["SacAgent"]
