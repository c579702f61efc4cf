"""The networks as the paper's listings, DrQ and most public code write them: the references of the speed table.

Stacked float observations (B, C, H, W), convolutions as patch embedding, attention written out, every block in
full. Parameters have the names they have in ours wherever the same shape does the same.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from ctrlformer.config import AgentConfig, Config, EncoderConfig


class ListingEncoder(nn.Module):
    """What both encoders share: pixels divided by 255, or centred and scaled by statistics of the batches seen."""

    features: int
    contrastive_dim: int
    projection: int | None = None

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", torch.full(shape, 127.5))
        self.register_buffer("variance", torch.tensor(127.5**2))
        self.register_buffer("batches", torch.tensor(0.0))
        self.mean: Tensor
        self.variance: Tensor
        self.batches: Tensor

    @torch.no_grad()
    def observe(self, obs: Tensor) -> None:
        """The plain average over batches, of 32 observations each."""
        if not self.config.normalise_pixels:
            return
        sample = obs[:32]
        self.batches += 1
        self.mean += (sample.mean(0) - self.mean) / self.batches
        self.variance += ((sample - self.mean).square().mean() - self.variance) / self.batches

    def scaled(self, obs: Tensor) -> Tensor:
        if not self.config.normalise_pixels:
            return obs / 255
        return (obs - self.mean) / self.variance.clamp(min=1.0).sqrt()

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) to the features (B, 50) for actor and critics, and what the contrastive loss takes."""
        raise NotImplementedError


class ListingCtrlFormer(ListingEncoder):
    """The pyramid Vision Transformer with one policy token: `paper`'s patches or `compact_vit`'s stem."""

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        channels, size, _ = shape
        dim, side = config.dim, size // config.patch_size
        first = config.stem_width if config.stem == "conv" else dim
        stem: list[nn.Module] = [nn.Conv2d(channels, first, config.patch_size, stride=config.patch_size)]
        while config.stem == "conv" and side > 6:
            stem += [nn.GELU(), nn.Conv2d(first, dim, 3, stride=2, padding=1)]
            first, side = dim, -(-side // 2)
        self.stem = nn.Sequential(*stem)
        self.side = side
        self.contrastive_token = nn.Parameter(torch.randn(dim) * config.position_scale)
        self.policy_token = nn.Parameter(torch.randn(dim) * config.position_scale)
        self.positions = nn.Parameter(torch.randn(side * side, dim) * config.position_scale)
        self.stages = nn.ModuleList(
            nn.Sequential(*(ListingBlock(dim, config.heads, config.mlp_ratio) for _ in range(config.blocks_per_stage)))
            for _ in range(3)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.feature_dim)
        self.features, self.contrastive_dim = config.feature_dim, dim

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        patches = self.stem(self.scaled(obs)).flatten(2).transpose(1, 2)  # (B, N, D)
        special = torch.stack([self.contrastive_token, self.policy_token]).expand(len(obs), -1, -1)  # (B, 2, D)
        z = torch.cat([special, patches + self.positions], dim=1)  # (B, 2 + N, D)
        z = self.stages[0](z)
        z, grid = _halve(z, (self.side, self.side), (2, 1))
        z = self.stages[1](z)
        z, _ = _halve(z, grid, (1, 2))
        z = self.norm(self.stages[2](z))
        features = self.head(z[:, 1])
        return torch.tanh(features) if self.config.feature_tanh else features, z[:, 0]


class ListingBlock(nn.Module):
    """z' = MHSA(LN(z)) + z, then z = MLP(LN(z')) + z', with softmax(QK^T / sqrt d) V written out."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.attention = nn.ModuleDict({"qkv": nn.Linear(dim, 3 * dim), "out": nn.Linear(dim, dim)})
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))

    def forward(self, z: Tensor) -> Tensor:
        z = z + self._attend(self.norm1(z))
        out: Tensor = z + self.mlp(self.norm2(z))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.attention["qkv"](x).reshape(batch, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # 3 x (B, heads, T, d)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)  # (B, heads, T, T)
        out: Tensor = self.attention["out"]((weights @ v).transpose(1, 2).reshape(batch, tokens, dim))
        return out


class ListingCnn(ListingEncoder):
    """DrQ's four convolutions; actor and critic project their output to features by themselves."""

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        channels, size, _ = shape
        self.convolutions = drq_convolutions(channels)
        side = (size - 3) // 2 + 1 - 6
        self.features = self.contrastive_dim = 32 * side * side
        self.projection = config.feature_dim

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.convolutions(self.scaled(obs)).flatten(1)
        return features, features


def drq_convolutions(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(channels, 32, 3, stride=2), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
    return nn.Sequential(*layers)


def make_listing_encoder(config: Config) -> ListingEncoder:
    shape = (3 * config.env.frame_stack, config.env.image_size, config.env.image_size)
    kind = ListingCnn if config.encoder.kind == "cnn" else ListingCtrlFormer
    return kind(config.encoder, shape)


class ListingActor(nn.Module):
    """Features to a tanh-Gaussian."""

    def __init__(self, features: int, action_dim: int, config: AgentConfig, projection: int | None) -> None:
        super().__init__()
        self.log_std = (config.log_std_min, config.log_std_max)
        self.project = _projection(features, projection)
        self.trunk = _mlp(projection or features, 2 * action_dim, config)

    def forward(self, features: Tensor) -> TransformedDistribution:
        mean, raw = self.trunk(self.project(features)).chunk(2, dim=-1)
        low, high = self.log_std
        log_std = low + 0.5 * (high - low) * (torch.tanh(raw) + 1)
        return TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])


class ListingCritic(nn.Module):
    """Two Q functions."""

    def __init__(self, features: int, action_dim: int, config: AgentConfig, projection: int | None) -> None:
        super().__init__()
        self.project = _projection(features, projection)
        self.q1 = _mlp((projection or features) + action_dim, 1, config)
        self.q2 = _mlp((projection or features) + action_dim, 1, config)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F), (B, A) to two (B,)."""
        x = torch.cat([self.project(features), action], dim=-1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


def make_projector(inputs: int, config: AgentConfig, projection: int | None = None) -> nn.Sequential:
    hidden, outputs = config.projector_hidden, config.projector_dim
    first = [_projection(inputs, projection)] if projection else []
    linear = nn.Linear(projection or inputs, hidden)
    return nn.Sequential(*first, linear, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _projection(inputs: int, outputs: int | None) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.Tanh()) if outputs else nn.Identity()


def _mlp(inputs: int, outputs: int, config: AgentConfig) -> nn.Sequential:
    widths = [inputs] + [config.head_width] * (config.head_layers - 1)
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts.append(nn.Linear(before, after))
        parts += [nn.LayerNorm(after), nn.ReLU()] if config.head_norm else [nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(widths[-1], outputs))


def _halve(z: Tensor, grid: tuple[int, int], stride: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """2x2 max pooling of the patches behind the two special tokens, stride 2 along one axis."""
    height, width = grid
    square = z[:, 2:].transpose(1, 2).reshape(len(z), -1, height, width)  # (B, D, H, W)
    pad_rows = height % 2 if stride[0] == 2 else 1
    pad_columns = width % 2 if stride[1] == 2 else 1
    square = F.max_pool2d(F.pad(square, (0, pad_columns, 0, pad_rows), value=float("-inf")), 2, stride)
    return torch.cat([z[:, :2], square.flatten(2).transpose(1, 2)], dim=1), (square.shape[2], square.shape[3])
