"""The presets are what the decisions table says."""

import pytest

from ctrlformer.config import differences
from ctrlformer.errors import ConfigError
from ctrlformer.presets import OFFICIAL, PAPER, PRESETS, preset


def test_official_is_the_decisions_table() -> None:
    assert differences(PAPER, OFFICIAL) == {
        "preset": ("paper", "official"),
        "encoder.blocks_per_stage": (3, 2),
        "encoder.pooling": ("max2", "max3_mlp"),
        "encoder.positions": ("patches", "all"),
        "encoder.feature_tanh": (True, False),
        "encoder.scale_pixels": (True, False),
        "agent.contrastive_loss": ("cosine", "mse"),
        "agent.projector_ends_in_norm": (False, True),
        "agent.target_encoder": ("byol", "online"),
        "agent.head_layers": (3, 4),
        "agent.weight_decay": (0.1, 0.01),
        "agent.decay_on": ("encoder_matrices", "all"),
    }


def test_every_preset_knows_its_name() -> None:
    assert all(config.preset == name for name, config in PRESETS.items())


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'compact'"):
        preset("compat")
