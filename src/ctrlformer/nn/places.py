"""Attention that answers where, not what: a token asks a feature map, and each answer is a place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PlaceReader(nn.Module):
    """K questions of a token, each answered by the mean position under its attention, and by how clear the answer is.

    A map of features is the same function everywhere in the picture, and a position is a number: what is learned of a
    target at some places holds at all others. Features that mix what and where through the token's own width have to
    see a target everywhere first.
    """

    SHARPNESS = 2.0  # of the attention at the start
    CLARITY = 0.3  # brings the mean logit to the size of positions, which lie between -1 and 1

    def __init__(self, dim: int, channels: int, questions: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.questions = questions
        self.ask = nn.Linear(dim, questions * channels)
        self.outputs = 3 * questions
        rows, columns = (torch.linspace(-1, 1, count) for count in grid)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        self.register_buffer("places", torch.stack([x.flatten(), y.flatten()], dim=1), persistent=False)  # (N, x and y)
        self.places: Tensor

    def forward(self, token: Tensor, cells: Tensor) -> Tensor:
        """Token (B, D) and map (B, h, w, C) to (B, 3K): x, y and clarity of every answer."""
        keys = cells.flatten(1, 2)  # (B, N, C)
        attention, logits = self.attend(token, keys)
        where = attention @ self.places  # (B, K, 2)
        clarity = self.CLARITY * (attention * logits).sum(-1, keepdim=True)  # (B, K, 1)
        return torch.cat([where, clarity], dim=-1).flatten(1)

    def attend(self, token: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Attention and its logits, (B, K, N) each."""
        queries = self.ask(token).view(len(token), self.questions, -1)  # (B, K, C)
        logits = queries @ keys.transpose(1, 2) * (self.SHARPNESS / math.sqrt(keys.shape[2]))
        return torch.softmax(logits, dim=-1), logits
