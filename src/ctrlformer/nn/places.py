"""Attention that answers where, not what: questions to a feature map, answered by places; and a painter of places."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PlaceReader(nn.Module):
    """K questions to a map of cells, each answered by the mean position under its attention, and by its presence.

    A map of features is the same function everywhere in the picture, and a position is a number: what is learned of a
    target at some places holds at all others.
    """

    PRESENCE_OFFSET = 1.0  # mean logit from which a thing counts as more present than absent

    def __init__(self, grid: tuple[int, int]) -> None:
        super().__init__()
        rows, columns = (torch.linspace(-1, 1, count) for count in grid)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        places = torch.stack([x.flatten(), y.flatten(), torch.ones(x.numel())], dim=1)
        self.register_buffer("places", places, persistent=False)  # (N, 3): x, y, 1
        self.places: Tensor

    def forward(self, questions: Tensor, cells: Tensor) -> Tensor:
        """Questions (K, C + 1) of cells (B, h, w, C) to (B, K, 3): x and y from -1 to 1, presence from 0 to 1.

        One exponential and one product with (x, y, 1) give softmax, mean position and logsumexp at once; torch's own
        functions for these take three times as long on a CPU.
        """
        logits = self.logits(questions, cells)
        largest = logits.detach().amax(-1, keepdim=True)  # (B, K, 1)
        weights = torch.exp(logits - largest)
        sums = torch.mm(weights.flatten(0, 1), self.places).view(*weights.shape[:2], -1)  # (B, K, 3)
        total = sums[..., 2:]
        strength = largest + torch.log(total) - math.log(logits.shape[-1])  # logarithm of the mean of exp(logits)
        return torch.cat([sums[..., :2] / total, torch.sigmoid(strength - self.PRESENCE_OFFSET)], dim=-1)

    def logits(self, questions: Tensor, cells: Tensor) -> Tensor:
        """(B, K, N): how well every cell answers every question; a softmax over the cells gives the attention."""
        query, bias = questions[:, :-1], questions[:, -1:]  # (K, C), (K, 1)
        keys = cells.flatten(1, 2).transpose(1, 2)  # (B, C, N)
        # Not `@`, which rounds otherwise where no gradient is asked for: a frozen task must stay as it is, to the bit.
        return torch.baddbmm(bias, query.expand(len(keys), -1, -1), keys)


class Painter(nn.Module):
    """Paints K places as soft spots of a colour and width of their own, onto a picture of `size` pixels a side."""

    FIRST_WIDTH = 0.25  # of a spot, where the picture reaches from -1 to 1
    FIRST_COLOURS = 0.1

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.size, self.channels = size, channels
        self.register_buffer("pixels", torch.linspace(-1, 1, size), persistent=False)
        self.pixels: Tensor

    def new_brushes(self, count: int) -> Tensor:
        """(K, C + 1): a random colour, and the logarithm of the width."""
        colours = self.FIRST_COLOURS * torch.randn(count, self.channels)
        return torch.cat([colours, torch.full((count, 1), math.log(self.FIRST_WIDTH))], dim=1)

    def forward(self, places: Tensor, brushes: Tensor) -> Tensor:
        """Places (B, K, 3) to the picture (B, C, size, size): the sum of all spots."""
        colours, width = brushes[:, : self.channels], brushes[:, self.channels :].exp()
        x, y, presence = (part[..., None] for part in places.unbind(-1))  # (B, K, 1) each
        along = presence * torch.exp(-0.5 * ((x - self.pixels) / width).square())  # (B, K, W)
        down = torch.exp(-0.5 * ((y - self.pixels) / width).square())  # (B, K, H)
        coloured = (down[:, :, None] * colours[None, :, :, None]).flatten(2)  # (B, K, C H)
        return (coloured.transpose(1, 2) @ along).view(len(places), self.channels, self.size, self.size)
