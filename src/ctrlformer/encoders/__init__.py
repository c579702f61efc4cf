"""Encoders: stacked frames in, tokens out. `make_encoder` picks the one a config names."""

from __future__ import annotations

from ctrlformer.config import EncoderConfig, EnvConfig
from ctrlformer.encoders.cnn import CnnEncoder
from ctrlformer.encoders.contract import Encoder, Tokens
from ctrlformer.encoders.ctrlformer import CtrlFormerEncoder

__all__ = ["CnnEncoder", "CtrlFormerEncoder", "Encoder", "Tokens", "make_encoder"]


def make_encoder(config: EncoderConfig, env: EnvConfig) -> Encoder:
    """An encoder without tasks; `add_task` gives it the first."""
    shape = (env.image_size, env.image_size, 3 * env.frame_stack)
    return CnnEncoder(config, shape) if config.kind == "cnn" else CtrlFormerEncoder(config, shape)
