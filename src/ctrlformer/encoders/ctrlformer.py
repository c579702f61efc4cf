"""The CtrlFormer encoder (Section 3.1, Figure 3): a pyramid Vision Transformer over patches, one policy
token per task and one contrastive token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.errors import ConfigError
from ctrlformer.nn.byte_patches import patches_linear
from ctrlformer.nn.transformer import (
    Block,
    HalvingPool,
    ResidualMlp,
    channels_last,
    grid_to_tokens,
    initialise,
    tokens_to_grid,
)


class PatchEmbedding(nn.Module):
    """Cut uint8 pixels into patches and map each by one linear layer.

    A linear layer on cut-out patches runs its backward pass twice as fast on a CPU as the convolution with
    stride = kernel that computes the same.
    """

    def __init__(self, patch: int, channels: int, dim: int) -> None:
        super().__init__()
        self.patch = patch
        self.linear = nn.Linear(patch * patch * channels, dim)

    def forward(self, pixels: Tensor, mean: Tensor | None, scale: Tensor | float) -> Tensor:
        """(B, H, W, C) to (B, H/p, W/p, D) of scale * (pixels - mean).

        The map is linear, so its small matrix is scaled and its output centred, instead of a million pixels:
        W s(x - m) + b = (sW)x + (b - (sW)m).
        """
        weight = self.linear.weight * scale
        grid = pixels.shape[1] // self.patch * (pixels.shape[2] // self.patch)
        offset = self.linear.bias.expand(grid, -1)  # (N, D)
        if mean is not None:
            offset = offset - patches_linear(mean[None], self.patch, weight, torch.zeros_like(offset))[0].flatten(0, 1)
        return patches_linear(pixels, self.patch, weight, offset)


class ConvTail(nn.Module):
    """The rest of the conv stem: 3x3 convolutions of stride 2, each after a GELU, down to a 6x6 grid."""

    LARGEST_GRID = 6

    def __init__(self, channels: int, dim: int, grid: tuple[int, int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        while max(grid) > self.LARGEST_GRID:
            layers += [nn.GELU(), nn.Conv2d(channels, dim, 3, stride=2, padding=1)]
            channels, grid = dim, (-(-grid[0] // 2), -(-grid[1] // 2))
        self.grid = grid
        self.layers = nn.Sequential(*layers)
        channels_last(self)

    def forward(self, grid: Tensor) -> Tensor:
        """(B, h, w, c) to (B, h', w', D)."""
        out: Tensor = self.layers(grid.permute(0, 3, 1, 2))
        return out.permute(0, 2, 3, 1)


class CtrlFormerEncoder(Encoder):
    LEVELS = 3

    def __init__(self, config: EncoderConfig, shape: tuple[int, int, int]) -> None:
        super().__init__(config, shape)
        height, width, channels = shape
        if height % config.patch_size or width % config.patch_size:
            raise ConfigError(f"encoder.patch_size {config.patch_size} does not divide env.image_size {height}")
        grid = (height // config.patch_size, width // config.patch_size)
        dim = config.dim
        conv = config.stem == "conv" and max(grid) > ConvTail.LARGEST_GRID  # else there is nothing left to convolve
        self.embed = PatchEmbedding(config.patch_size, channels, config.stem_width if conv else dim)
        self.tail = ConvTail(config.stem_width, dim, grid) if conv else None
        self.grid = grid if self.tail is None else self.tail.grid

        self.contrastive_token = nn.Parameter(self._random(dim))
        self.policy_tokens = nn.ParameterList()
        self.positions = nn.Parameter(self._random(self.grid[0] * self.grid[1], dim))
        # The released code gives the special tokens positions too; added to learned tokens, they start at zero.
        self.special_positions = nn.ParameterList([nn.Parameter(torch.zeros(dim))] if self._all_positions else [])

        self.stages = nn.ModuleList(  # the pyramid's levels; checkpoints know them by this name
            nn.ModuleList(Block(dim, config.heads, config.mlp_ratio) for _ in range(config.blocks_per_stage))
            for _ in range(self.LEVELS)
        )
        if config.pooling == "max2":
            self.pools = nn.ModuleList([HalvingPool((2, 1)), HalvingPool((1, 2))])
            self.after_pool: nn.Module = nn.Identity()
        else:
            self.pools = nn.ModuleList([nn.MaxPool2d(3, stride, padding=1) for stride in ((1, 2), (2, 1))])
            self.after_pool = ResidualMlp(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.feature_dim)
        self.features, self.contrastive_dim = config.feature_dim, dim
        initialise(self, config.init)
        if config.init == "orthogonal":  # elsewhere the patch map is a convolution, which gets ReLU's gain
            self.embed.linear.weight.data.mul_(nn.init.calculate_gain("relu"))

    @property
    def _all_positions(self) -> bool:
        return self.config.positions == "all"

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape) * self.config.position_scale

    def add_task(self, copy_from: int | None = None) -> list[nn.Parameter]:
        super().add_task(copy_from)
        start = self._random(self.config.dim) if copy_from is None else self.policy_tokens[copy_from].detach().clone()
        new = [nn.Parameter(start.to(self.positions.device))]
        self.policy_tokens.append(new[0])
        if self._all_positions:
            new.append(nn.Parameter(torch.zeros_like(new[0])))
            self.special_positions.append(new[1])
        return new

    def token_counts(self) -> list[int]:
        """Patch tokens in each level: 196, 98, 49 in the paper."""
        height, width = self.grid
        first = height * width
        if self.config.pooling == "max2":
            height = -(-height // 2)
        else:
            width = -(-width // 2)
        return [first, height * width, -(-self.grid[0] // 2) * -(-self.grid[1] // 2)]

    def encode(self, observation: Tensor, task: int) -> Tokens:
        causal = self.config.task_attention == "causal"
        # A causal token does not know of later tasks' tokens, so these are not even computed.
        special = self._special_tokens(task + 1 if causal else None).expand(len(observation), -1, -1)  # (B, 1+K, D)
        count = special.shape[1]
        z = torch.cat([special, self._patches(observation, task) + self.positions], dim=1)  # Equation 3: (B, 1+K+N, D)
        grid = self.grid
        for index, level in enumerate(self.stages):
            if index:
                z, grid = self._pool(z, count, grid, index - 1)
            last_level = index == self.LEVELS - 1
            for depth, block in enumerate(level.children()):
                last_block = last_level and depth == self.config.blocks_per_stage - 1
                z = block(z, count if last_block else None, count if causal else None)
        z = self.norm(z)  # (B, 1+K, D): the last block kept the special tokens only
        features = self.head(z[:, 1 + task])  # (B, feature_dim)
        return Tokens(torch.tanh(features) if self.config.feature_tanh else features, z[:, 0])

    def _special_tokens(self, policies: int | None) -> Tensor:
        """The contrastive token and the first `policies` policy tokens, or all: (1+K, D)."""
        tokens = torch.stack([self.contrastive_token, *self.policy_tokens[:policies]])
        if self._all_positions:
            tokens = tokens + torch.stack(list(self.special_positions)[: len(tokens)])
        return tokens

    def _patches(self, pixels: Tensor, task: int) -> Tensor:
        """uint8 (B, H, W, C) to patch tokens (B, N, D)."""
        mean = None if self.statistics is None else self.statistics.mean[task]
        grid: Tensor = self.embed(pixels, mean, self.pixel_scale(task))  # (B, h, w, c)
        return (grid if self.tail is None else self.tail(grid)).flatten(1, 2)

    def _pool(self, z: Tensor, count: int, grid: tuple[int, int], which: int) -> tuple[Tensor, tuple[int, int]]:
        """Halve the patch tokens; special tokens pass by."""
        pooled = self.pools[which](tokens_to_grid(z[:, count:], grid))  # (B, D, H', W')
        patches = self.after_pool(grid_to_tokens(pooled))
        return torch.cat([z[:, :count], patches], dim=1), (pooled.shape[2], pooled.shape[3])
