"""Encoders: stacked frames in, tokens out. `make_encoder` picks the one a config names."""

from __future__ import annotations

import torch

from ctrlformer.config import EncoderConfig, EnvConfig
from ctrlformer.encoders.cnn import CnnEncoder
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.encoders.conv import ConvEncoder
from ctrlformer.encoders.ctrlformer import CtrlFormerEncoder
from ctrlformer.encoders.frames import FrameReader, PictureReader, ResNetReader
from ctrlformer.encoders.places import PlacesEncoder
from ctrlformer.encoders.resnet import ResNetEncoder, resnet_features

__all__ = [
    "CnnEncoder",
    "ConvEncoder",
    "CtrlFormerEncoder",
    "Encoder",
    "FrameReader",
    "PlacesEncoder",
    "ResNetEncoder",
    "Tokens",
    "make_encoder",
    "make_frame_reader",
]


def make_encoder(config: EncoderConfig, env: EnvConfig) -> Encoder:
    """An encoder without tasks; `add_task` gives it the first. It takes what `make_frame_reader`'s stacks hold."""
    if config.kind == "resnet50":
        return ResNetEncoder(config, (env.frame_stack, resnet_features(config.resnet_width)))
    shape = (env.image_size, env.image_size, 3 * env.frame_stack)
    kinds = {"cnn": CnnEncoder, "conv": ConvEncoder, "ctrlformer": CtrlFormerEncoder, "places": PlacesEncoder}
    return kinds[config.kind](config, shape)


def make_frame_reader(config: EncoderConfig, device: torch.device) -> FrameReader:
    """What turns a frame into what the encoder sees of it."""
    return ResNetReader(config, device) if config.kind == "resnet50" else PictureReader()
