"""Transformer block and token pooling of the pyramid (Section 3.1 of the paper)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention on torch's fused kernel."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, queries: int, special: int | None = None) -> Tensor:
        """(B, T, D) to (B, queries, D). All see all; or, told that the first `special` tokens are special, patches
        see patches only and a special token sees patches, itself and the special tokens before it."""
        batch, tokens, dim = x.shape
        weight, bias = self.qkv.weight, self.qkv.bias
        # Only the first `queries` tokens ask; all answer.
        q = F.linear(x[:, :queries], weight[:dim], bias[:dim])  # (B, Q, D)
        kv = F.linear(x, weight[dim:], bias[dim:])  # (B, T, 2D)
        q = q.view(batch, queries, self.heads, -1).transpose(1, 2)  # (B, heads, Q, d)
        k, v = kv.view(batch, tokens, 2, self.heads, -1).permute(2, 0, 3, 1, 4)  # 2 x (B, heads, T, d)
        if special is None:
            mixed = F.scaled_dot_product_attention(q, k, v)  # (B, heads, Q, d)
        else:
            mixed = _causal_attention(q, k, v, special)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, queries, dim))
        return out


def _causal_attention(q: Tensor, k: Tensor, v: Tensor, special: int) -> Tensor:
    """Attention of each kind of token by itself: what no token may see is never computed, patches among them."""
    sees = torch.ones(special, k.shape[2], dtype=torch.bool, device=q.device).tril()
    sees[:, special:] = True  # (S, T): itself, those before it, and every patch
    mixed = F.scaled_dot_product_attention(q[:, :, :special], k, v, attn_mask=sees)
    if q.shape[2] == special:  # the last block: nobody asks for patches
        return mixed
    patches = F.scaled_dot_product_attention(q[:, :, special:], k[:, :, special:], v[:, :, special:])
    return torch.cat([mixed, patches], dim=2)  # (B, heads, Q, d)


class Block(nn.Module):
    """Pre-norm block, Equation 4: z' = MHSA(LN(z)) + z, then z = MLP(LN(z')) + z'."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))

    def forward(self, z: Tensor, queries: int | None = None, special: int | None = None) -> Tensor:
        """(B, T, D) to (B, queries, D): the pyramid's last block needs only the special tokens' rows.

        `special` is for `Attention`."""
        queries = z.shape[1] if queries is None else queries
        z = z[:, :queries] + self.attention(self.norm1(z), queries, special)
        out: Tensor = z + self.mlp(self.norm2(z))
        return out


class HalvingPool(nn.Module):
    """2x2 max pooling with stride 2 along one axis only, padded on one side so that the tokens halve."""

    def __init__(self, stride: tuple[int, int]) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, grid: Tensor) -> Tensor:
        """(B, D, H, W) to (B, D, ceil(H/2), W) for stride (2, 1), the other way round for (1, 2)."""
        return F.max_pool2d(self.padded(grid), 2, self.stride)

    def padded(self, grid: Tensor) -> Tensor:
        """With a row and a column more where the windows need them."""
        height, width = grid.shape[-2:]
        pad_rows = height % 2 if self.stride[0] == 2 else 1
        pad_columns = width % 2 if self.stride[1] == 2 else 1
        # Minus infinity never wins a maximum, so the padding is not seen.
        return F.pad(grid, (0, pad_columns, 0, pad_rows), value=float("-inf"))


class ResidualMlp(nn.Module):
    """The released code's extra map after each pooling: 192-384-192 with ReLU, shared by both poolings."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = tokens + self.layers(tokens)
        return out


def initialise(module: nn.Module, style: str) -> None:
    """Set every linear and convolution below `module`: `vit` is timm's small normal, `xavier` keeps variance,
    `orthogonal` is DrQ's, with ReLU's gain on convolutions.

    With std 0.02 and a narrow D, attention starts all but uniform and a policy token sees an average
    of the picture; Xavier's larger weights let it tell patches apart from the first update.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            if style == "xavier":
                nn.init.xavier_uniform_(part.weight)
            elif style == "orthogonal":
                _orthogonal(part.weight, nn.init.calculate_gain("relu") if part.weight.ndim == 4 else 1.0)
            else:
                nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def _orthogonal(weight: Tensor, gain: float) -> None:
    """Torch's own fails for weights that lie channels last."""
    with torch.no_grad():
        weight.copy_(nn.init.orthogonal_(torch.empty(weight.shape), gain))


def tokens_to_grid(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, H*W, D) to (B, D, H, W), a view in channels-last order."""
    return tokens.reshape(len(tokens), *grid, -1).permute(0, 3, 1, 2)


def grid_to_tokens(grid: Tensor) -> Tensor:
    """(B, D, H, W) to (B, H*W, D)."""
    return torch.flatten(grid, 2).transpose(1, 2)


def channels_last(module: nn.Module) -> None:
    """Lay out the convolutions below `module` for pixels whose channels come last, as ours do."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
