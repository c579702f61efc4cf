"""Blocks and pooling against slow and obvious re-computations."""

import pytest
import torch
from torch import nn

from ctrlformer.nn.transformer import (
    Attention,
    Block,
    HalvingPool,
    ResidualMlp,
    grid_to_tokens,
    initialise,
    tokens_to_grid,
)


def test_attention_equals_the_textbook_formula() -> None:
    torch.manual_seed(0)
    attention = Attention(dim=8, heads=2)
    x = torch.randn(3, 5, 8)
    q, k, v = attention.qkv(x).chunk(3, dim=-1)
    mixed = torch.zeros(3, 5, 8)
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        weights = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / 4**0.5, dim=-1)
        mixed[..., part] = weights @ v[..., part]
    torch.testing.assert_close(attention(x, queries=5), attention.out(mixed))


def test_a_block_asked_for_few_rows_returns_the_first_of_all() -> None:
    torch.manual_seed(0)
    block = Block(dim=8, heads=2, mlp_ratio=2)
    z = torch.randn(3, 6, 8)
    torch.testing.assert_close(block(z, queries=2), block(z)[:, :2])


@pytest.mark.parametrize(
    ("stride", "size", "expected"),
    [((2, 1), (14, 14), (7, 14)), ((1, 2), (7, 14), (7, 7)), ((2, 1), (3, 5), (2, 5)), ((1, 2), (2, 5), (2, 3))],
)
def test_pooling_halves_one_axis(stride: tuple[int, int], size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert HalvingPool(stride)(torch.randn(2, 4, *size)).shape[-2:] == expected


def test_pooling_takes_the_maximum_of_2x2_and_never_the_padding() -> None:
    grid = -torch.arange(1.0, 13.0).view(1, 1, 4, 3)  # all below zero: a zero padding would win
    pooled = HalvingPool((2, 1))(grid)[0, 0]
    assert pooled.tolist() == [[-1, -2, -3], [-7, -8, -9]]


def test_grid_and_tokens_are_each_others_inverse() -> None:
    tokens = torch.randn(2, 12, 5)
    torch.testing.assert_close(grid_to_tokens(tokens_to_grid(tokens, (3, 4))), tokens)


def test_residual_mlp_widens_twofold() -> None:
    module = ResidualMlp(192)
    assert [part.out_features for part in module.layers if isinstance(part, nn.Linear)] == [384, 192]


@pytest.mark.parametrize(("style", "low", "high"), [("vit", 0.015, 0.025), ("xavier", 0.1, 0.15)])
def test_initial_weights_have_the_named_size(style: str, low: float, high: float) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 64)
    initialise(linear, style)
    assert low < float(linear.weight.std()) < high
    assert not linear.bias.any()
