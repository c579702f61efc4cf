"""Attention rollout against hand-computed cases and against torch's own gradients."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
import torch
from torch import nn

from ctrlformer.config.presets import preset
from ctrlformer.encoders import make_encoder
from ctrlformer.encoders.ctrlformer import CtrlFormerEncoder
from ctrlformer.explain.attention_rollout import (
    Layer,
    Pool,
    _note_attention,
    _Trace,
    attention_weights,
    pooled_shares,
    rolled_out,
    rollout_map,
)
from ctrlformer.nn.transformer import Attention, HalvingPool

BATCH, TOKENS, DIM, HEADS, SPECIAL = 2, 7, 8, 2, 3


def small_encoder(
    attention: Literal["joint", "causal"] = "joint", stem: Literal["patch", "conv"] = "conv", tasks: int = 2
) -> CtrlFormerEncoder:
    torch.manual_seed(0)
    settings = dataclasses.replace(preset("tiny").encoder, task_attention=attention, stem=stem)
    encoder = make_encoder(settings, preset("tiny").env)
    assert isinstance(encoder, CtrlFormerEncoder)
    for number in range(tasks):
        encoder.add_task(number - 1 if number else None)
    return encoder


@pytest.mark.parametrize("queries", [TOKENS, SPECIAL])
@pytest.mark.parametrize("special", [None, SPECIAL])
def test_the_weights_are_those_of_the_fast_path(queries: int, special: int | None) -> None:
    torch.manual_seed(0)
    attention, x = Attention(DIM, HEADS), torch.randn(BATCH, TOKENS, DIM)
    weights, values = attention_weights(attention, x, queries, special)
    assert weights.shape == (BATCH, HEADS, queries, TOKENS)
    mixed = (weights @ values).transpose(1, 2).reshape(BATCH, queries, DIM)
    torch.testing.assert_close(attention.out(mixed), attention(x, queries, special))


def test_gradients_of_the_weights_are_torchs_own() -> None:
    torch.manual_seed(0)
    attention, x = Attention(DIM, HEADS), torch.randn(BATCH, TOKENS, DIM)
    trace = _Trace()
    attention.register_forward_hook(_note_attention(trace))
    attention(x, TOKENS, None).square().sum().backward()

    weights, values = attention_weights(attention, x, TOKENS, None)
    weights.requires_grad_(True)
    mixed = (weights @ values).transpose(1, 2).reshape(BATCH, TOKENS, DIM)
    attention.out(mixed).square().sum().backward()
    (layer,) = trace.steps
    assert isinstance(layer, Layer)
    torch.testing.assert_close(layer.gradient, weights.grad)


def test_a_hand_computed_rollout() -> None:
    """One special token and two patches; two layers; nothing discarded."""
    first = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])  # patch 1 reads patch 2
    second = torch.tensor([[0.0, 0.5, 0.0]])  # the special token reads patch 1; influence is 1 after scaling
    steps: list[Layer | Pool] = [Layer(part[None, None], torch.ones(1, 1, *part.shape)) for part in (first, second)]
    # Shortcut and influence share each row: patch 1 is half itself and half patch 2, and the token half of that.
    torch.testing.assert_close(rolled_out(steps, 1, 0, discard=0.0), torch.tensor([[0.25, 0.25]]))


def test_heads_are_averaged_and_what_harms_does_not_count() -> None:
    weights = torch.tensor([[[0.0, 0.8, 0.2]], [[0.0, 0.2, 0.8]]])[None]  # two heads, one query
    gradient = torch.tensor([[[0.0, 1.0, -1.0]], [[0.0, 1.0, -1.0]]])[None]
    found = rolled_out([Layer(weights, gradient)], 1, 0, discard=0.0)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.0]]))


def test_the_weakest_attention_is_discarded() -> None:
    weights = torch.arange(1.0, 11.0).view(1, 1, 1, 10)
    found = rolled_out([Layer(weights, torch.ones_like(weights))], 1, 0, discard=0.9)
    assert found.nonzero().tolist() == [[0, 8]], "of ten only the strongest is left"


def test_pooling_hands_back_what_each_patch_gave() -> None:
    """Two tokens pooled to one: a patch that wins three of four channels holds three quarters."""
    steps = [
        Layer(torch.eye(3)[None, None], torch.ones(1, 1, 3, 3)),
        Pool(torch.tensor([[[0.75, 0.25]]])),
        Layer(torch.tensor([[[[0.0, 1.0]]]]), torch.ones(1, 1, 1, 2)),
    ]
    torch.testing.assert_close(rolled_out(steps, 1, 0, discard=0.0), torch.tensor([[0.375, 0.125]]))


@pytest.mark.parametrize(
    "pool",
    [HalvingPool((2, 1)), HalvingPool((1, 2)), nn.MaxPool2d(3, (1, 2), padding=1), nn.MaxPool2d(3, (2, 1), padding=1)],
)
@pytest.mark.parametrize("size", [(4, 4), (5, 3)])
def test_shares_are_what_a_pooling_takes(pool: nn.Module, size: tuple[int, int]) -> None:
    """A patch that is by far the largest in one channel must hold exactly that channel's share wherever it wins."""
    torch.manual_seed(0)
    grid = torch.randn(2, 6, *size)
    shares = pooled_shares(pool, grid)
    pooled = pool(grid).flatten(2)  # (B, D, N')
    torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:2]))
    flat = grid.flatten(2)
    for batch in range(2):
        for place in range(pooled.shape[2]):
            won = [int((flat[batch, channel] == pooled[batch, channel, place]).nonzero()) for channel in range(6)]
            counted = torch.bincount(torch.tensor(won), minlength=flat.shape[2]) / 6
            torch.testing.assert_close(shares[batch, place], counted)


@pytest.mark.parametrize("attention", ["joint", "causal"])
@pytest.mark.parametrize("stem", ["patch", "conv"])
def test_a_map_covers_the_picture_and_changes_with_the_pixels(
    attention: Literal["joint", "causal"], stem: Literal["patch", "conv"]
) -> None:
    encoder = small_encoder(attention, stem)
    pixels = torch.randint(0, 256, (2, 84, 84, 9), dtype=torch.uint8)
    maps = [rollout_map(encoder, pixels, task) for task in range(2)]
    for one in maps:
        assert one.shape == (2, 84, 84)
        assert float(one.min()) >= 0
        torch.testing.assert_close(one.amax((1, 2)), torch.ones(2))
    assert not torch.equal(maps[0][0], maps[0][1]), "other pixels, other places"


def test_the_map_moves_with_what_the_features_depend_on() -> None:
    """Blank patches give a token nothing to tell them by; a bright one is what it reads."""
    encoder = small_encoder(stem="patch", tasks=1)
    pixels = torch.zeros(2, 84, 84, 9, dtype=torch.uint8)
    pixels[0, 12:24, 12:24] = 255
    pixels[1, 60:72, 60:72] = 255
    change = (rollout_map(encoder, pixels, 0, discard=0.5)[0] - rollout_map(encoder, pixels, 0, discard=0.5)[1]).abs()
    assert float(change.max()) > 0.2


def test_looking_leaves_the_encoder_as_it_was() -> None:
    encoder = small_encoder()
    encoder.requires_grad_(False)
    encoder.policy_tokens[1].requires_grad_(True)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with torch.no_grad():
        rollout_map(encoder, torch.zeros(1, 84, 84, 9, dtype=torch.uint8), 0)
    assert [p.requires_grad for p in encoder.policy_tokens] == [False, True]
    assert not encoder.embed.linear.weight.requires_grad
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert not encoder.embed._forward_hooks
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name])
