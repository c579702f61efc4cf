"""The presets are what the decisions table says."""

import pytest

from ctrlformer.config import differences
from ctrlformer.config.presets import DREAMER, DRQ, DRQ_CONTRASTIVE, OFFICIAL, PAPER, PRESETS, RESNET50_SAC, preset
from ctrlformer.errors import ConfigError


def test_official_is_the_decisions_table() -> None:
    assert differences(PAPER, OFFICIAL) == {
        "preset": ("paper", "official"),
        "encoder.blocks_per_stage": (3, 2),
        "encoder.pooling": ("max2", "max3_mlp"),
        "encoder.positions": ("patches", "all"),
        "encoder.init": ("vit", "orthogonal"),
        "encoder.feature_tanh": (True, False),
        "encoder.scale_pixels": (True, False),
        "agent.contrastive_loss": ("cosine", "mse"),
        "agent.projector_ends_in_norm": (False, True),
        "agent.target_encoder": ("ema", "online"),
        "agent.contrastive_target": ("ema", "online"),
        "agent.head_layers": (3, 4),
        "agent.weight_decay": (0.1, 0.01),
        "agent.decay_on": ("encoder_matrices", "all"),
        "transfer.encoder_lr_scale": (0.05, 0.0825),
        "transfer.heads": ("fresh", "copy"),
        "transfer.train_token": (True, False),
        "transfer.temperature": (None, 1e-4),
        "transfer.random_start": (False, True),
    }


def test_drq_contrastive_is_drq_with_byol_and_nothing_else() -> None:
    assert differences(DRQ, DRQ_CONTRASTIVE) == {
        "preset": ("drq", "drq_contrastive"),
        "agent.contrastive": (False, True),
    }


def test_resnet50_sac_is_the_papers_but_for_what_stored_features_forbid() -> None:
    assert differences(PAPER, RESNET50_SAC) == {
        "preset": ("paper", "resnet50_sac"),
        "encoder.kind": ("ctrlformer", "resnet50"),
        "agent.q_regularisation": (True, False),
        "agent.contrastive": (True, False),
        "agent.shift": (4, 0),
    }
    assert (RESNET50_SAC.agent.batch_size, RESNET50_SAC.agent.learning_rate) == (512, 1e-4)


def test_dreamer_is_its_own_papers() -> None:
    agent, settings = DREAMER.agent, DREAMER.dreamer
    assert (agent.batch_size, settings.sequence_length, settings.horizon) == (50, 50, 15)
    assert (settings.deterministic, settings.stochastic, settings.free_nats) == (200, 30, 3.0)
    assert (agent.discount, settings.return_mixing, settings.exploration_noise) == (0.99, 0.95, 0.3)
    assert (settings.model_learning_rate, settings.actor_learning_rate, settings.value_learning_rate) == (
        6e-4,
        8e-5,
        8e-5,
    )
    assert (agent.gradient_clip, agent.update_every) == (100.0, 5)
    assert DREAMER.encoder == PAPER.encoder  # it has none


def test_every_preset_knows_its_name() -> None:
    assert all(config.preset == name for name, config in PRESETS.items())


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'compact'"):
        preset("compat")
