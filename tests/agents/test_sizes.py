"""Networks too large for the machine are refused before they are made."""

from __future__ import annotations

import dataclasses

import pytest

from ctrlformer.agents import make_agent
from ctrlformer.agents.sizes import network_bytes
from ctrlformer.config.presets import preset
from ctrlformer.errors import ConfigError


@pytest.mark.parametrize("name", ["tiny", "compact", "drq", "dreamer_compact"])
def test_the_size_is_that_of_the_networks(name: str) -> None:
    config = dataclasses.replace(preset(name), tasks=("toy/reach",))
    agent = make_agent(config)
    agent.add_task("toy/reach", 1)
    groups = [group for part, group in agent.tensors().items() if part in ("encoder", "contrast", "heads", "world")]
    tensors = [tensor for group in groups for name, tensor in group.items() if "statistics" not in name]
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert network_bytes(config) == pytest.approx(held, rel=0.05)  # what is held has a few buffers as well


def test_networks_of_terabytes_are_refused() -> None:
    config = preset("tiny")
    encoder = dataclasses.replace(config.encoder, dim=8192, heads=1, blocks_per_stage=64)
    with pytest.raises(ConfigError, match=r"need \d+\.\d GB, and this machine has"):
        make_agent(dataclasses.replace(config, encoder=encoder))
    dreamer = dataclasses.replace(preset("dreamer"), dreamer=dataclasses.replace(config.dreamer, conv_width=1024))
    with pytest.raises(ConfigError, match="GB"):
        make_agent(dataclasses.replace(dreamer, dreamer=dataclasses.replace(dreamer.dreamer, deterministic=8192)))
