"""What an agent makes of a frame before any learning, once: the replay stores it, encoders see stacks of it."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.config import EncoderConfig
from ctrlformer.encoders.resnet import resnet_features
from ctrlformer.encoders.weights import load_resnet
from ctrlformer.nn.transformer import channels_last
from ctrlformer.replay.stack_kernel import CHANNELS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours, which the weights expect
REMEMBERED = 64  # frames: an observation shares all but its newest with the one before, in every task of a stage

Frame = NDArray[np.uint8]


class FrameReader(Protocol):
    @property
    def features(self) -> int | None:
        """Numbers read from a frame; none where the picture itself is kept."""

    def read(self, frame: Frame) -> NDArray[Any]:
        """What the replay stores of a frame (84, 84, 3)."""

    def stack(self, pixels: Frame) -> Tensor:
        """What an encoder sees of an observation (84, 84, 9)."""


class PictureReader:
    """Frames are kept as they are."""

    features = None

    def read(self, frame: Frame) -> Frame:
        return frame

    def stack(self, pixels: Frame) -> Tensor:
        return torch.from_numpy(pixels)


class SmallPictureReader:
    """Pictures averaged down to a side of at most `size` pixels, once, before anything is learnt from them."""

    features = None

    def __init__(self, size: int) -> None:
        self._size = size

    def read(self, frame: Frame) -> Frame:
        small: Frame = self.stack(frame).numpy()
        return small

    def stack(self, pixels: Frame) -> Tensor:
        whole = torch.from_numpy(np.ascontiguousarray(pixels))  # (84, 84, C)
        if len(whole) <= self._size:
            return whole
        small = F.adaptive_avg_pool2d(whole.permute(2, 0, 1).float(), self._size)  # (C, size, size)
        return small.permute(1, 2, 0).round().to(torch.uint8).contiguous()


class ResNetReader:
    """Keeps the features (2048,) that a frozen ResNet makes of a frame, float32.

    Frames are read one by one, in a thread of their own. Torch's results depend a little on how many frames there are
    in a batch and on how many threads compute, which a thread gets by when it starts; so a feature is the same to the
    last bit whether it was read while collecting, while acting or after a resume.
    """

    def __init__(self, config: EncoderConfig, device: torch.device) -> None:
        self._resnet = load_resnet(config).to(device)
        channels_last(self._resnet)
        self.features = resnet_features(config.resnet_width)
        self._size, self._device, self._threads = config.resnet_size, device, torch.get_num_threads()
        self._mean, self._std = (
            torch.tensor(colours, device=device).view(1, CHANNELS, 1, 1) for colours in (MEAN, STD)
        )
        self._known = functools.lru_cache(REMEMBERED)(self._read_anew)

    def read(self, frame: Frame) -> NDArray[np.float32]:
        return self._known(frame.tobytes(), frame.shape)

    def stack(self, pixels: Frame) -> Tensor:
        """(84, 84, 9) to (3, 2048), oldest frame first: all but the newest are remembered."""
        frames = np.split(pixels, pixels.shape[-1] // CHANNELS, axis=-1)
        return torch.from_numpy(np.stack([self.read(frame) for frame in frames]))

    def _read_anew(self, data: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
        frame = np.frombuffer(data, np.uint8).reshape(shape)
        return _thread(self._threads).submit(self._features, frame).result()

    @torch.no_grad()
    def places(self, frame: Frame) -> Tensor:
        """(84, 84, 3) to (2048, h, w): features of every place, for looking at what is looked at."""
        return self._resnet.places(self._prepared(frame))[0]

    @torch.no_grad()
    def _features(self, frame: Frame) -> NDArray[np.float32]:
        features: NDArray[np.float32] = self._resnet(self._prepared(frame))[0].cpu().numpy()
        features.setflags(write=False)  # it will be handed out again
        return features

    def _prepared(self, frame: Frame) -> Tensor:
        """As ImageNet's weights expect a picture."""
        pixels = torch.from_numpy(frame / np.float32(255)).to(self._device)  # (84, 84, 3)
        x = pixels.permute(2, 0, 1)[None]  # (1, 3, 84, 84)
        x = F.interpolate(x, (self._size, self._size), mode="bilinear", antialias=True)
        return (x - self._mean) / self._std


@functools.cache
def _thread(threads: int) -> ThreadPoolExecutor:
    """One thread of the process, in which torch uses so many."""
    return ThreadPoolExecutor(1, "frames", initializer=torch.set_num_threads, initargs=(threads,))
