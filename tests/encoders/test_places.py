"""Policy tokens that read positions from maps of convolutions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ctrlformer.config import EncoderConfig, EnvConfig
from ctrlformer.config.presets import preset
from ctrlformer.encoders import PlacesEncoder, make_encoder
from ctrlformer.encoders.places import POSITION_SCALE, mean_positions
from ctrlformer.errors import ConfigError

SMALL = replace(preset("compact").encoder, kind="places", patch_size=4, stem_width=8, dim=8, feature_dim=16)


def build(size: int = 32, config: EncoderConfig = SMALL) -> PlacesEncoder:
    torch.manual_seed(0)
    encoder = make_encoder(config, EnvConfig(image_size=size))
    assert isinstance(encoder, PlacesEncoder)
    encoder.add_task()
    return encoder


def pixels(size: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (2, size, size, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("patch", [2, 4, 6])
@pytest.mark.parametrize("size", [16, 24, 33, 84])
def test_every_size_has_its_maps(size: int, patch: int) -> None:
    encoder = build(size, replace(SMALL, patch_size=patch))
    tokens = encoder(pixels(size), 0)
    assert tokens.policy.shape == (2, 16)
    assert float(tokens.policy.abs().max()) <= POSITION_SCALE
    assert tokens.contrastive.shape == (2, encoder.contrastive_dim)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"patch_size": 5}, "an even"), ({"patch_size": 18}, "36 at least"), ({"feature_dim": 18}, "18")],
)
def test_settings_without_maps_are_refused(change: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        build(config=replace(SMALL, **change))


def test_a_query_finds_where_its_channel_is_active() -> None:
    cells = torch.zeros(1, 2, 4, 8)  # (B, C, h, w)
    cells[0, 0, 3, 1] = cells[0, 1, 0, 6] = 20.0
    queries = torch.nn.Linear(2, 2, bias=False)
    queries.weight.data = torch.eye(2)
    x, y = mean_positions(cells, queries)[0]
    torch.testing.assert_close(x, torch.tensor([1.5 / 4 - 1, 6.5 / 4 - 1]))
    torch.testing.assert_close(y, torch.tensor([3.5 / 2 - 1, 0.5 / 2 - 1]))


def test_positions_are_those_of_a_softmax_whatever_all_cells_share() -> None:
    cells = torch.randn(3, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    queries = torch.nn.Linear(5, 2, bias=False)
    attention = queries(cells.permute(0, 2, 3, 1)).flatten(1, 2).softmax(1)  # (B, N, K)
    columns = (torch.arange(16) % 4 + 0.5) / 2 - 1
    expected = (attention * columns[:, None]).sum(1)
    torch.testing.assert_close(mean_positions(cells, queries)[:, 0], expected)
    assert mean_positions(1e4 * cells, queries).isfinite().all()


def test_a_thing_that_moves_moves_its_position_as_far() -> None:
    """By one cell of the coarse map, away from the edges; nothing has been learned."""
    stacks = torch.zeros(2, 64, 64, 9, dtype=torch.uint8)
    stacks[0, 24:32, 24:32] = stacks[1, 24:32, 28:36] = 255
    encoder = build(64, replace(SMALL, normalise_pixels=False))
    with torch.no_grad():
        for queries in encoder.policy_tokens[0].parameters():
            queries.mul_(100)  # sharp, so that the empty cells do not count
    first, second = encoder(stacks, 0).policy.view(2, 2, 2, 4)[:, :, 0]  # of x: (maps, K)
    moved = (second - first) / POSITION_SCALE
    sees = (moved - 0.125).abs() < 0.02  # 4 of 64 pixels, from -1 to 1
    assert bool(sees.any(1).all())


def test_a_copied_token_reads_as_its_source_and_learns_by_itself() -> None:
    encoder = build()
    new = encoder.add_task(copy_from=0)
    before = encoder(pixels(), 0).policy
    torch.testing.assert_close(encoder(pixels(), 1).policy, before)
    with torch.no_grad():
        new[0].add_(torch.randn(new[0].shape))
    assert torch.equal(encoder(pixels(), 0).policy, before)
    assert not torch.allclose(encoder(pixels(), 1).policy, before)


def test_bf16_rounds_only() -> None:
    encoder = build()
    exact = encoder(pixels(), 0).policy
    encoder.bf16 = True
    rounded = encoder(pixels(), 0).policy
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0.1)
