"""Weights that are not finite end `explain` in one line."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ctrlformer.agents import SacAgent
from ctrlformer.config.presets import preset
from ctrlformer.errors import NonFiniteError
from ctrlformer.explain.attention_maps import attention_maps
from ctrlformer.explain.similarity import cosines


def test_maps_and_similarities_are_finite_or_refused() -> None:
    agent = SacAgent(dataclasses.replace(preset("tiny"), tasks=("toy/reach",)))
    agent.add_task("toy/reach", 2)
    with torch.no_grad():
        for parameter in agent.encoder.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="toy/reach"):
        attention_maps(agent, "toy/reach", np.zeros((1, 84, 84, 9), np.uint8))
    with pytest.raises(NonFiniteError, match="not finite"):
        cosines(torch.tensor([[float("nan"), 1.0], [1.0, 0.0]]))
