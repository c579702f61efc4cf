"""What an agent stores of a frame: a picture, or the features of a frozen network."""

from __future__ import annotations

from typing import NamedTuple

from ctrlformer.config.schema import Config

CHANNELS, FLOAT_BYTES = 3, 4
RESNET_FEATURES = 32  # of a frame, as a multiple of the ResNet's width


class StoredFrame(NamedTuple):
    """The form of a frame in the replay."""

    size: int
    """Side of the picture in pixels."""
    features: int | None
    """Numbers that are stored in place of the picture."""

    @property
    def bytes(self) -> int:
        return self.size**2 * CHANNELS if self.features is None else self.features * FLOAT_BYTES


def stored_frame(config: Config) -> StoredFrame:
    """
    >>> stored_frame(Config())
    StoredFrame(size=84, features=None)
    """
    size = config.env.image_size
    if config.agent.kind == "dreamer":
        return StoredFrame(min(size, config.dreamer.frame_size), None)
    frozen = config.encoder.kind == "resnet50"
    return StoredFrame(size, RESNET_FEATURES * config.encoder.resnet_width if frozen else None)
