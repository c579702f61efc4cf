"""Every setting of a training as frozen dataclasses: standard library only."""

from ctrlformer.config.schema import (
    ADDED_LATER,
    AgentConfig,
    Config,
    EncoderConfig,
    EnvConfig,
    Precision,
    StageConfig,
    TrainingConfig,
    differences,
    from_json,
    to_json,
)
from ctrlformer.config.transfer import TransferConfig

__all__ = [
    "ADDED_LATER",
    "AgentConfig",
    "Config",
    "EncoderConfig",
    "EnvConfig",
    "Precision",
    "StageConfig",
    "TrainingConfig",
    "TransferConfig",
    "differences",
    "from_json",
    "to_json",
]
