"""From single frames to embeddings and from features back to frames, by strided convolutions."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from ctrlformer.nn.transformer import channels_last

KERNEL, STRIDE = 4, 2
COLOURS = 3


def centred(frames: Tensor) -> Tensor:
    """uint8 (N, S, S, 3) to (N, 3, S, S) from -0.5 to 0.5."""
    return frames.permute(0, 3, 1, 2).float() / 255 - 0.5


def conv_sizes(size: int) -> list[int]:
    """Sides of a picture after each convolution, its own first: as many as the kernel fits.

    >>> conv_sizes(64), conv_sizes(42)
    ([64, 31, 14, 6, 2], [42, 20, 9, 3])
    """
    sizes = [size]
    while sizes[-1] >= KERNEL:
        sizes.append((sizes[-1] - KERNEL) // STRIDE + 1)
    return sizes


def conv_channels(size: int, width: int) -> list[int]:
    """Channels beside `conv_sizes`: the colours, then `width`, doubled by every further convolution."""
    return [COLOURS] + [width * 2**layer for layer in range(len(conv_sizes(size)) - 1)]


class FrameEncoder(nn.Module):
    """A frame as `outputs` numbers."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        channels = conv_channels(size, width)
        self.layers = nn.Sequential()
        for before, after in itertools.pairwise(channels):
            self.layers.extend([nn.Conv2d(before, after, KERNEL, STRIDE), nn.ReLU()])
        self.outputs = channels[-1] * conv_sizes(size)[-1] ** 2
        channels_last(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) to (N, outputs)."""
        embedding: Tensor = self.layers(pixels).flatten(1)
        return embedding


class FrameDecoder(nn.Module):
    """The encoder's mirror image: every transposed convolution restores the size that the encoder's had before it."""

    def __init__(self, features: int, size: int, width: int) -> None:
        super().__init__()
        sizes, channels = conv_sizes(size)[::-1], conv_channels(size, width)[::-1]
        self._start = (channels[0], sizes[0], sizes[0])
        self.expand = nn.Linear(features, channels[0] * sizes[0] ** 2)
        self.layers = nn.Sequential()
        for (small, large), (before, after) in zip(
            itertools.pairwise(sizes), itertools.pairwise(channels), strict=True
        ):
            missing = large - ((small - 1) * STRIDE + KERNEL)  # 1 where the encoder's stride left a row out
            self.layers.extend([nn.ConvTranspose2d(before, after, KERNEL, STRIDE, output_padding=missing), nn.ReLU()])
        del self.layers[-1]
        channels_last(self)

    def forward(self, features: Tensor) -> Tensor:
        """(N, F) to (N, 3, S, S)."""
        pixels: Tensor = self.layers(self.expand(features).unflatten(1, self._start))
        return pixels
