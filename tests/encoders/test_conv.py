"""Policy tokens that read a map of convolutions cell by cell."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ctrlformer.config import EnvConfig
from ctrlformer.config.presets import preset
from ctrlformer.encoders import Encoder, make_encoder
from ctrlformer.errors import ConfigError

SMALL = replace(preset("compact").encoder, stem_width=8, dim=8, feature_dim=16)


def build(size: int = 32, patch: int = 4, tasks: int = 1) -> Encoder:
    torch.manual_seed(0)
    encoder = make_encoder(replace(SMALL, patch_size=patch), EnvConfig(image_size=size))
    for _ in range(tasks):
        encoder.add_task()
    return encoder


def pixels(size: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (2, size, size, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("patch", [2, 3, 4])
@pytest.mark.parametrize("size", [16, 24, 33, 84])
def test_every_size_has_its_map(size: int, patch: int) -> None:
    encoder = build(size, patch)
    tokens = encoder(pixels(size), 0)
    assert tokens.policy.shape == (2, encoder.features)
    assert tokens.contrastive.shape == (2, encoder.contrastive_dim)


def test_a_picture_smaller_than_two_patches_is_refused() -> None:
    with pytest.raises(ConfigError, match="16 at least"):
        build(12, 8)


def test_a_copied_token_reads_as_its_source_and_learns_by_itself() -> None:
    encoder = build()
    new = encoder.add_task(copy_from=0)
    before = encoder(pixels(), 0).policy
    torch.testing.assert_close(encoder(pixels(), 1).policy, before)
    with torch.no_grad():
        new[0][0].add_(0.1)  # one feature: LayerNorm takes out what all share
    assert torch.equal(encoder(pixels(), 0).policy, before)
    assert not torch.allclose(encoder(pixels(), 1).policy, before)


def test_a_token_tells_where_a_thing_is_from_the_first_update_on() -> None:
    """Two pictures of the same square in different places differ as much as two of noise."""
    stacks = torch.zeros(2, 32, 32, 9, dtype=torch.uint8)
    stacks[0, 4:8, 4:8] = stacks[1, 20:24, 20:24] = 255
    first, second = build()(stacks, 0).policy
    assert float((first - second).abs().mean()) > 0.1


def test_bf16_rounds_only() -> None:
    encoder = build()
    exact = encoder(pixels(), 0).policy
    encoder.bf16 = True
    rounded = encoder(pixels(), 0).policy
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0.1)
