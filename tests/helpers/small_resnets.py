"""Weight files of very narrow ResNet-50s, and configs that take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ctrlformer.encoders.resnet import ResNet, resnet_features

WIDTH = 2
FEATURES = resnet_features(WIDTH)  # 64


def resnet_tensors(seed: int = 0, width: int = WIDTH) -> dict[str, Tensor]:
    """All that the public file has: the network with statistics that do something, and the classifier."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random(name, tensor, generator).contiguous() for name, tensor in ResNet(width).state_dict().items()
    }
    return tensors | {
        "fc.weight": torch.randn(1000, resnet_features(width), generator=generator),
        "fc.bias": torch.zeros(1000),
    }


def _random(name: str, like: Tensor, generator: torch.Generator) -> Tensor:
    if name.endswith("num_batches_tracked"):
        return torch.tensor(7)
    if like.ndim == 4:  # a convolution: as large as keeps its output at the size of its input
        return torch.randn(like.shape, generator=generator) * like[0].numel() ** -0.5
    spread = 0.5 * torch.rand(like.shape, generator=generator)
    return spread - 0.25 if name.endswith(("bias", "running_mean")) else spread + 0.75


def write_weights(path: Path, seed: int = 0, width: int = WIDTH) -> Path:
    save_file(resnet_tensors(seed, width), path)
    return path


def resnet_settings(weights: Path) -> dict[str, Any]:
    """What turns `small_config` into a training on a narrow ResNet."""
    return {
        "encoder__kind": "resnet50",
        "encoder__weights": str(weights),
        "encoder__resnet_size": 32,
        "encoder__resnet_width": WIDTH,
        "encoder__normalise_pixels": False,
        "agent__shift": 0,
        "agent__contrastive": False,
        "agent__target_encoder": "critic",
    }
