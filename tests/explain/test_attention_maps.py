"""Grad-CAM of the baselines, and the one door to every kind of map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_resnets import resnet_settings, write_weights
from small_runs import small_config

from ctrlformer.agents import SacAgent
from ctrlformer.api import make_config
from ctrlformer.explain.attention_maps import attention_maps, cam

TASK = "toy/reach"


def test_cam_weighs_channels_by_their_mean_gradient() -> None:
    activation = torch.tensor([[[[1.0, 2.0]], [[3.0, 0.0]]]])  # two channels of 1x2
    gradient = torch.tensor([[[[2.0, 0.0]], [[-1.0, 0.0]]]])  # means 1 and -0.5
    assert cam(activation, gradient).tolist() == [[[[0.5, 2.0]]]]


def agent_of(encoder: str) -> SacAgent:
    config = make_config([TASK], "tiny", None, 1, {"encoder.kind": encoder, "agent.contrastive": False})
    agent = SacAgent(config)
    agent.add_task(TASK, 2)
    return agent


@pytest.mark.parametrize("kind", ["ctrlformer", "places", "conv", "cnn"])
def test_maps_of_an_agent_trained_in_bf16_are_those_in_fp32(kind: str) -> None:
    agent = agent_of(kind)
    observations = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 9), dtype=np.uint8)
    expected = attention_maps(agent, TASK, observations)
    agent.encoder.bf16 = True
    np.testing.assert_array_equal(attention_maps(agent, TASK, observations), expected)
    assert agent.encoder.bf16


@pytest.mark.parametrize("kind", ["ctrlformer", "places", "conv", "cnn"])
def test_maps_of_many_observations_are_those_of_each(kind: str) -> None:
    agent = agent_of(kind)
    observations = np.random.default_rng(0).integers(0, 256, (35, 84, 84, 9), dtype=np.uint8)
    maps = attention_maps(agent, TASK, observations)
    assert maps.shape == (35, 84, 84)
    assert maps.dtype == np.float32
    assert maps.min() >= 0
    assert maps.max() <= 1
    np.testing.assert_allclose(maps[34], attention_maps(agent, TASK, observations[34:])[0], atol=1e-4)


def test_a_resnets_map_is_of_the_newest_frame(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights.safetensors")
    agent = SacAgent(small_config(TASK, **resnet_settings(weights) | {"encoder__resnet_size": 64}))
    agent.add_task(TASK, 2)
    observations = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 9), dtype=np.uint8)
    maps = attention_maps(agent, TASK, observations)
    assert maps.shape == (2, 84, 84)
    assert (maps.max((1, 2)) > 0.99).all()
    assert np.isfinite(maps).all()
    other = observations.copy()
    other[..., -3:] = 255 - other[..., -3:]
    assert not np.array_equal(attention_maps(agent, TASK, other), maps)
