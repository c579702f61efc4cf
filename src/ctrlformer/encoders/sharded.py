"""One encoder pass by several threads, each with its own share of the batch.

Torch's own threads share out every single operation, and wait for each other after each; an encoder of small
operations spends much of its time waiting. Here the threads meet once per pass. The shares and the order in which
gradients are added are fixed, so the numbers do not depend on which thread is quicker.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ctrlformer.encoders.contract import Encoder, Tokens


class ShardedPass:
    """Calls like the encoder itself, `ShardedPass(encoder, threads)(pixels, task)`, with the same answer."""

    def __init__(self, encoder: Encoder, threads: int) -> None:
        self.encoder, self.threads = encoder, threads

    def __call__(self, pixels: Tensor, task: int) -> Tokens:
        shards = pixels.tensor_split(min(self.threads, len(pixels)))
        if torch.is_grad_enabled():
            parameters = [p for p in self.encoder.parameters() if p.requires_grad]
            return Tokens(*_Sharded.apply(self, shards, task, *parameters))  # type: ignore[no-untyped-call]
        return Tokens(*map(torch.cat, zip(*self.forward(shards, task, gradient=False), strict=True)))

    def forward(self, shards: Sequence[Tensor], task: int, gradient: bool) -> list[Tokens]:
        def encode(shard: Tensor) -> Tokens:
            with torch.set_grad_enabled(gradient):  # a thread does not know the caller's setting
                tokens: Tokens = self.encoder(shard, task)
            return tokens

        return list(_workers(self.threads).map(encode, shards))

    def backward(
        self, outputs: Sequence[Sequence[Tensor]], gradients: Sequence[Sequence[Tensor]], parameters: Sequence[Tensor]
    ) -> list[Sequence[Tensor | None]]:
        """Every shard's gradients of the parameters."""

        def walk(out: Sequence[Tensor], gradient: Sequence[Tensor]) -> Sequence[Tensor | None]:
            return torch.autograd.grad(out, parameters, gradient, allow_unused=True)

        return list(_workers(self.threads).map(walk, outputs, gradients))


@functools.cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch keeps to itself; they serve every encoder of the process."""
    return ThreadPoolExecutor(threads, "encoder", initializer=torch.set_num_threads, initargs=(1,))


class _Sharded(torch.autograd.Function):
    """Keeps every shard's own graph in the forward pass, and walks them side by side in the backward pass."""

    @staticmethod
    def forward(ctx: Any, passes: ShardedPass, shards: Sequence[Tensor], task: int, *parameters: Tensor) -> Any:
        ctx.set_materialize_grads(False)  # no pass backwards from a token that no loss has read
        ctx.passes, ctx.parameters = passes, parameters
        ctx.tokens = passes.forward(shards, task, gradient=True)
        return tuple(torch.cat([part.detach() for part in parts]) for parts in zip(*ctx.tokens, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        sizes = [len(tokens.policy) for tokens in ctx.tokens]
        read = [number for number, gradient in enumerate(gradients) if gradient is not None]
        outputs = [[tokens[number] for number in read] for tokens in ctx.tokens]
        shares = list(
            zip(*(torch.split(gradient, sizes) for gradient in gradients if gradient is not None), strict=True)
        )
        by_shard = ctx.passes.backward(outputs, shares, ctx.parameters)
        del ctx.tokens  # the graphs, and with them the activations
        return None, None, None, *(_sum(parts) for parts in zip(*by_shard, strict=True))


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    """One parameter's gradients, added in the shards' order; none where the loss does not reach it."""
    found = [part for part in parts if part is not None]
    return sum(found[1:], found[0]) if found else None
