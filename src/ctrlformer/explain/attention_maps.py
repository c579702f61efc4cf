"""Where an agent's encoder looks, whatever its kind: rollout for the transformer, the queries' attention for places,
Grad-CAM for other convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.agents import SacAgent
from ctrlformer.encoders import Encoder
from ctrlformer.encoders.cnn import CnnEncoder
from ctrlformer.encoders.conv import ConvEncoder
from ctrlformer.encoders.ctrlformer import CtrlFormerEncoder
from ctrlformer.encoders.frames import ResNetReader
from ctrlformer.encoders.places import PlacesEncoder, PolicyToken
from ctrlformer.errors import NonFiniteError
from ctrlformer.explain.attention_rollout import learning, rollout_map, to_picture
from ctrlformer.replay.stack_kernel import CHANNELS

METHODS = {
    "ctrlformer": "attention rollout",
    "places": "attention of queries",
    "cnn": "Grad-CAM",
    "conv": "Grad-CAM",
    "resnet50": "Grad-CAM",
}
TOGETHER = 32  # observations in one pass


def attention_maps(agent: SacAgent, task: str, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(N, H, W, C) to (N, H, W): what of each observation reaches the task's features, at most 1 in each."""
    parts = [observations[start : start + TOGETHER] for start in range(0, len(observations), TOGETHER)]
    with _in_fp32(agent.encoder):
        maps = np.concatenate([_maps(agent, task, part).cpu().numpy() for part in parts])
    if not np.isfinite(maps).all():
        raise NonFiniteError(f"what {task} looks at is not finite: the weights of this encoder are damaged")
    return maps


@contextmanager
def _in_fp32(encoder: Encoder) -> Iterator[None]:
    """Maps are built from weights and activations by hand, which autocast does not reach."""
    trained_in, encoder.bf16 = encoder.bf16, False
    try:
        yield
    finally:
        encoder.bf16 = trained_in


def _maps(agent: SacAgent, task: str, observations: NDArray[np.uint8]) -> Tensor:
    encoder, index = agent.encoder, agent.tasks.index(task)
    size = observations.shape[1:3]
    if isinstance(encoder, CtrlFormerEncoder):
        return rollout_map(encoder, torch.from_numpy(observations).to(agent.device), index)
    if isinstance(encoder, PlacesEncoder):
        return to_picture(_places_map(agent, encoder, torch.from_numpy(observations).to(agent.device), index), size)
    if isinstance(encoder, CnnEncoder | ConvEncoder):
        return to_picture(_cnn_cam(agent, encoder, torch.from_numpy(observations).to(agent.device), index), size)
    return to_picture(_resnet_cam(agent, observations, index), size)


def cam(activation: Tensor, gradient: Tensor) -> Tensor:
    """Grad-CAM: channels (B, C, h, w) weighed by their mean gradient: (B, 1, h, w).

    A class is recognised by what speaks for it; a value follows from what lowers it too, so the sign is dropped, not
    what is negative.
    """
    weights = gradient.mean((2, 3), keepdim=True)
    return (weights * activation).sum(1, keepdim=True).abs()


def _value(agent: SacAgent, observations: Tensor, task: int) -> Tensor:
    """What Grad-CAM explains: the value of the mean action. The features' sum, as for the transformer, would not do:
    layer normalisation, which follows these encoders, makes it all but constant."""
    return agent.value(agent.tasks[task], agent.encoder(observations, task).policy).sum()


def _cnn_cam(agent: SacAgent, encoder: CnnEncoder | ConvEncoder, pixels: Tensor, task: int) -> Tensor:
    """Of the last convolution."""
    found: list[Tensor] = []
    handle = encoder.convolutions.register_forward_hook(lambda _, __, output: found.append(output))
    try:
        with learning(encoder):
            (gradient,) = torch.autograd.grad(_value(agent, pixels, task), found[0])
    finally:
        handle.remove()
    return cam(found[0].detach(), gradient)


def _places_map(agent: SacAgent, encoder: PlacesEncoder, pixels: Tensor, task: int) -> Tensor:
    """Every query's attention to the cells, by how much the value of the mean action depends on the position that the
    query found: (B, 1, h, w)."""
    with torch.no_grad():
        fine, coarse = encoder.maps(pixels, task)
        positions = encoder.encode(pixels, task).policy
    positions.requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(agent.value(agent.tasks[task], positions).sum(), positions)
    fine_x, fine_y, coarse_x, coarse_y = gradient.chunk(4, dim=1)  # (B, K) each
    token, found = encoder.policy_tokens[task], []
    assert isinstance(token, PolicyToken)
    for cells, queries, x, y in ((fine, token.fine, fine_x, fine_y), (coarse, token.coarse, coarse_x, coarse_y)):
        attention = queries(cells.permute(0, 2, 3, 1)).flatten(1, 2).softmax(1).detach()  # (B, N, K)
        seen = attention @ torch.hypot(x, y)[..., None]  # (B, N, 1)
        found.append(F.interpolate(seen.view(-1, 1, *cells.shape[2:]), fine.shape[2:]))
    return found[0] + found[1]


def _resnet_cam(agent: SacAgent, observations: NDArray[np.uint8], task: int) -> Tensor:
    """Of the frozen network's last layer, for the newest frame; the gradient comes through the trained layer."""
    reader = agent.reader
    assert isinstance(reader, ResNetReader)
    places = torch.stack([reader.places(pixels[..., -CHANNELS:]) for pixels in observations])  # (B, 2048, h, w)
    stacks = torch.stack([reader.stack(pixels) for pixels in observations]).to(agent.device)  # (B, 3, 2048)
    stacks.requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(_value(agent, stacks, task), stacks)
    newest = gradient[:, -1, :, None, None]  # (B, 2048, 1, 1): averaging over places shares it out evenly
    return cam(places, newest.expand_as(places))
