"""Which patches a policy token reads: gradient-weighted attention rollout (Listing 1), back through the pyramid.

The fast attention kernel never forms its weights. Here they are computed once more from what each attention layer
was given, and their gradients from the gradient of what it gave: dL/dA = dL/d(A V) V^T.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctrlformer.encoders.ctrlformer import CtrlFormerEncoder
from ctrlformer.nn.transformer import Attention, HalvingPool

DISCARD = 0.9  # share of attention, the weakest, that counts as noise (Listing 1)


def rollout_map(encoder: CtrlFormerEncoder, pixels: Tensor, task: int, discard: float = DISCARD) -> Tensor:
    """(B, H, W, C) uint8 to (B, H, W): how much the task's token reads of every place, at most 1 in each picture."""
    with _traced(encoder) as trace, learning(encoder):
        encoder(pixels, task).policy.sum().backward()  # Listing 1's loss
    policies = task + 1 if encoder.config.task_attention == "causal" else len(encoder.policy_tokens)
    read = rolled_out(trace.steps, 1 + policies, 1 + task, discard)  # (B, N)
    read = read.view(len(pixels), 1, *encoder.grid)
    if trace.stem is not None:
        read = _refined(read, trace.stem)
    return to_picture(read, pixels.shape[1:3])


def rolled_out(steps: list[Layer | Pool], special: int, token: int, discard: float) -> Tensor:
    """What special token number `token` has of every first patch, after all layers and poolings: (B, N)."""
    first = steps[0]
    assert isinstance(first, Layer), "a pyramid begins with attention"
    batch, tokens = first.weights.shape[0], first.weights.shape[-1]
    holds = _eye(first.weights, tokens, tokens).expand(batch, -1, -1)  # (B, T, S+N): what each token has of the first
    for step in steps:
        mixes = _mixing(step, discard) if isinstance(step, Layer) else _with_special(step.shares, special)
        holds = mixes @ holds
    return holds[:, token, special:]


@dataclass
class Layer:
    """One attention layer's weights, and their gradients."""

    weights: Tensor  # (B, heads, Q, T)
    gradient: Tensor  # (B, heads, Q, T)


@dataclass
class Pool:
    """For every pooled patch the share of channels that each patch before gave it."""

    shares: Tensor  # (B, N', N)


@dataclass
class Stem:
    """The patch map's output, where convolutions follow it, and its gradient."""

    activation: Tensor  # (B, h, w, c)
    gradient: Tensor  # (B, h, w, c)


@dataclass
class _Trace:
    steps: list[Layer | Pool] = field(default_factory=list)
    stem: Stem | None = None


def _mixing(layer: Layer, discard: float) -> Tensor:
    """(B, Q, T) whose rows sum to 1: positive influence averaged over heads, the weakest dropped, and the shortcut."""
    influence = (layer.weights * layer.gradient).mean(1).clamp(min=0)  # (B, Q, T)
    flat = influence.flatten(1)
    weakest = flat.argsort(dim=1)[:, : int(discard * flat.shape[1])]
    influence = flat.scatter(1, weakest, 0.0).view_as(influence)
    # Only proportions count from here on: without this the shortcut would drown small gradients.
    influence = influence / influence.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
    mixed = influence + _eye(influence, *influence.shape[1:])
    return mixed / mixed.sum(-1, keepdim=True)


def _with_special(shares: Tensor, special: int) -> Tensor:
    """Pooling leaves the special tokens as they are: (B, S+N', S+N)."""
    batch, after, before = shares.shape
    whole = shares.new_zeros(batch, special + after, special + before)
    whole[:, :special, :special] = _eye(shares, special, special)
    whole[:, special:, special:] = shares
    return whole


def _eye(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.eye(rows, columns, dtype=like.dtype, device=like.device)


@contextmanager
def learning(encoder: nn.Module) -> Iterator[None]:
    """Gradients for a moment, through parts that are frozen too; nothing stays of them."""
    flags = [parameter.requires_grad for parameter in encoder.parameters()]
    encoder.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        encoder.zero_grad(set_to_none=True)
        for parameter, flag in zip(encoder.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)


@contextmanager
def _traced(encoder: CtrlFormerEncoder) -> Iterator[_Trace]:
    """Note what attention and pooling do in a pass, forwards and backwards."""
    trace, handles = _Trace(), []
    for block in (block for stage in encoder.stages.children() for block in stage.children()):
        attention = block.get_submodule("attention")
        handles.append(attention.register_forward_hook(_note_attention(trace)))
    handles += [pool.register_forward_hook(_note_pool(trace)) for pool in encoder.pools]
    if encoder.tail is not None:
        handles.append(encoder.embed.register_forward_hook(_note_stem(trace)))
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def _note_attention(trace: _Trace) -> Any:
    def note(attention: Attention, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, queries, special = (*inputs, None)[:3]
        weights, values = attention_weights(attention, x.detach(), queries, special)
        layer = Layer(weights, torch.zeros_like(weights))
        trace.steps.append(layer)

        def note_gradient(gradient: Tensor) -> None:  # (B, Q, D) of the layer's output
            mixed = gradient @ attention.out.weight  # of what `out` was given
            mixed = mixed.view(*mixed.shape[:2], attention.heads, -1).transpose(1, 2)  # (B, heads, Q, d)
            layer.gradient = mixed @ values.transpose(2, 3)  # (B, heads, Q, T)

        output.register_hook(note_gradient)  # type: ignore[no-untyped-call]

    return note


@torch.no_grad()
def attention_weights(attention: Attention, x: Tensor, queries: int, special: int | None) -> tuple[Tensor, Tensor]:
    """The weights (B, heads, Q, T) that the fast kernel uses but never forms, and the values (B, heads, T, d)."""
    batch, tokens, dim = x.shape
    projected = F.linear(x, attention.qkv.weight, attention.qkv.bias)  # (B, T, 3D)
    q, k, v = projected.view(batch, tokens, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)  # 3 x (B, heads, T, d)
    scores = q[:, :, :queries] @ k.transpose(2, 3) / (dim // attention.heads) ** 0.5
    if special is not None:
        scores = scores.masked_fill(~_causal(tokens, special)[:queries].to(x.device), float("-inf"))
    return scores.softmax(-1), v


def _causal(tokens: int, special: int) -> Tensor:
    """(T, T): whom each token sees. Special ones: patches, themselves and those before; patches: patches."""
    sees = torch.ones(tokens, tokens, dtype=torch.bool)
    sees[:special, :special] = sees[:special, :special].tril()
    sees[special:, :special] = False
    return sees


def _note_pool(trace: _Trace) -> Any:
    def note(pool: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        trace.steps.append(Pool(pooled_shares(pool, inputs[0].detach())))

    return note


@torch.no_grad()
def pooled_shares(pool: nn.Module, grid: Tensor) -> Tensor:
    """(B, D, H, W) to (B, N', N): in how many of the channels a patch was the largest of those pooled together."""
    batch, channels, height, width = grid.shape
    places = torch.arange(height * width, dtype=grid.dtype, device=grid.device).view(1, 1, height, width)
    if isinstance(pool, HalvingPool):
        padded = pool.padded(grid)
        _, winners = F.max_pool2d(padded, 2, pool.stride, return_indices=True)
        inside = F.pad(places, (0, padded.shape[3] - width, 0, padded.shape[2] - height)).flatten().long()
        winners = inside[winners]
    else:
        assert isinstance(pool, nn.MaxPool2d)
        _, winners = F.max_pool2d(grid, pool.kernel_size, pool.stride, pool.padding, return_indices=True)
    winners = winners.flatten(2).transpose(1, 2)  # (B, N', D)
    shares = grid.new_zeros(batch, winners.shape[1], height * width)
    return shares.scatter_add(2, winners, grid.new_full(winners.shape, 1 / channels))


def _note_stem(trace: _Trace) -> Any:
    def note(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        stem = Stem(output.detach(), torch.zeros_like(output))
        trace.stem = stem

        def note_gradient(gradient: Tensor) -> None:
            stem.gradient = gradient

        output.register_hook(note_gradient)  # type: ignore[no-untyped-call]

    return note


def _refined(read: Tensor, stem: Stem) -> Tensor:
    """A convolutional stem leaves few, wide tokens (B, 1, H, W). What is read of each is shared out over the patches
    below it (B, 1, h, w), by how strongly these act on the features: |gradient x activation|."""
    acts = (stem.gradient * stem.activation).sum(-1).abs()[:, None]  # (B, 1, h, w)
    wide = F.interpolate(read, acts.shape[2:], mode="nearest")
    return wide * acts


def to_picture(read: Tensor, size: tuple[int, ...]) -> Tensor:
    """(B, 1, h, w) to (B, H, W), at most 1 in each picture."""
    smooth = F.interpolate(read, size, mode="bilinear", align_corners=False)[:, 0]
    return smooth / smooth.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(smooth.dtype).tiny)
