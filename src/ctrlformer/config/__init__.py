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
    TransferConfig,
    differences,
    from_json,
    to_json,
)

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
