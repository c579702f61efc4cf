"""How alike tasks are to the agent: cosines between their policy tokens, as they go in and as they come out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctrlformer.agents import SacAgent
from ctrlformer.encoders import ConvEncoder, CtrlFormerEncoder, PlacesEncoder
from ctrlformer.errors import NonFiniteError
from ctrlformer.replay.rehearsal import RehearsalBuffer


class Similarity(NamedTuple):
    what: str
    tasks: list[str]
    cosines: list[list[float]]


def token_similarity(agent: SacAgent) -> Similarity | None:
    """Of the learned tokens that go into the encoder; none where tasks share everything but their heads."""
    if not isinstance(agent.encoder, CtrlFormerEncoder | ConvEncoder | PlacesEncoder):
        return None
    tokens = torch.stack([_weights(token) for token in agent.encoder.policy_tokens])  # (K, D)
    return Similarity("learned policy tokens, before any picture is seen", list(agent.tasks), cosines(tokens))


def _weights(token: Tensor | nn.Module) -> Tensor:
    """A token's matrices: conv has norms after them that say nothing of the task."""
    matrices = [token] if isinstance(token, Tensor) else [part for part in token.parameters() if part.ndim > 1]
    return torch.cat([matrix.detach().flatten() for matrix in matrices])


def output_similarity(agent: SacAgent, buffers: list[RehearsalBuffer]) -> Similarity:
    """Of the mean features that each task's token makes of its own rehearsal buffer."""
    means = [agent.outputs(one.task, one.observations).features.mean(0) for one in buffers]  # K x (F,)
    what = "mean features over observations of each task"
    return Similarity(what, [one.task for one in buffers], cosines(torch.stack(means)))


def cosines(vectors: Tensor) -> list[list[float]]:
    """(K, D) to K rows of K.

    >>> cosines(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not bool(vectors.isfinite().all()):
        raise NonFiniteError("the features of a task are not finite: the weights or the rehearsal buffer are damaged")
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    rows: list[list[float]] = (unit @ unit.T).clamp(-1, 1).tolist()
    return rows
