"""Named settings: `preset("compact")` gives a whole `Config` to start from.

`paper` is the dataclasses' defaults. Every other preset is written as what it changes, so that reading
this file tells how it differs; `ctrlformer presets --diff A B` prints the same.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctrlformer.config.dreamer import DreamerConfig
from ctrlformer.config.schema import (
    AgentConfig,
    Config,
    EncoderConfig,
    EnvConfig,
    TrainingConfig,
    from_json,
    to_json,
)
from ctrlformer.config.transfer import TransferConfig
from ctrlformer.errors import ConfigError

SECTIONS = ("env", "encoder", "agent", "dreamer", "transfer", "training")

PAPER = Config()

# The authors' released code, where it departs from their text.
OFFICIAL = replace(
    PAPER,
    preset="official",
    encoder=replace(
        PAPER.encoder,
        blocks_per_stage=2,
        pooling="max3_mlp",
        positions="all",
        init="orthogonal",
        feature_tanh=False,
        scale_pixels=False,
    ),
    agent=replace(
        PAPER.agent,
        contrastive_loss="mse",
        projector_ends_in_norm=True,
        target_encoder="online",
        contrastive_target="online",
        head_layers=4,
        weight_decay=0.01,
        decay_on="all",
    ),
    transfer=TransferConfig(
        encoder_lr_scale=0.0825, heads="copy", train_token=False, temperature=1e-4, random_start=True
    ),
)

# DrQ (Kostrikov et al. 2020) as its authors wrote it. Actor and critics of every task project the shared convolutions
# by themselves; no contrastive loss, no weight decay.
DRQ = replace(
    PAPER,
    preset="drq",
    encoder=EncoderConfig(kind="cnn", init="orthogonal"),
    agent=replace(PAPER.agent, contrastive=False, weight_decay=0.0, learning_rate=1e-3),
)

# DrQ-C: DrQ with BYOL on the convolutional feature, and nothing else changed.
DRQ_CONTRASTIVE = replace(DRQ, preset="drq_contrastive", agent=replace(DRQ.agent, contrastive=True))

# SAC on a frozen ImageNet ResNet-50. Features are stored in place of frames, so nothing can be shifted.
RESNET50_SAC = replace(
    PAPER,
    preset="resnet50_sac",
    encoder=EncoderConfig(kind="resnet50"),
    agent=replace(PAPER.agent, contrastive=False, q_regularisation=False, shift=0),
)

# Dreamer, with the settings of its own paper: a round of updates there follows every 5 steps on average, too. The
# world model of one task is the next one's start and has new dynamics to learn: it is not slowed down.
DREAMER = replace(
    PAPER,
    preset="dreamer",
    agent=AgentConfig(kind="dreamer", batch_size=50, gradient_clip=100.0, update_every=5),
    transfer=TransferConfig(encoder_lr_scale=1.0),
    training=replace(PAPER.training, precision="fp32"),
)

# Dreamer for CPUs. Its divergence weighs little but is never free, so that the prior learns from the first update.
# Hafner et al. repeat actions twice; here they last up to 8 frames, and as many steps reach four times as far: hence
# a lower discount and nearer horizon, and rewards of about 1 a step: values of several hundred ran away.
DREAMER_COMPACT = replace(
    DREAMER,
    preset="dreamer_compact",
    agent=replace(DREAMER.agent, batch_size=16, update_every=2, discount=0.95),
    dreamer=DreamerConfig(
        frame_size=42,
        conv_width=16,
        deterministic=128,
        hidden=128,
        head_width=128,
        value_layers=2,
        actor_layers=2,
        sequence_length=25,
        horizon=10,
        reward_scale=0.125,
        kl_scale=0.1,
        free_nats=0.0,
        model_learning_rate=1e-3,
        actor_learning_rate=3e-4,
        value_learning_rate=3e-4,
        initial_deviation=1.0,
    ),
    training=TrainingConfig(frames=100_000, eval_episodes=5, precision="fp32"),
)

# The paper's pyramid of attention made small, for CPUs: what `compact` was before convolutions took its place.
COMPACT_VIT = replace(
    PAPER,
    preset="compact_vit",
    encoder=EncoderConfig(
        stem="conv",
        dim=64,
        heads=4,
        blocks_per_stage=1,
        mlp_ratio=2,
        init="xavier",
        position_scale=0.5,
        normalise_pixels=True,
    ),
    agent=AgentConfig(
        batch_size=256,
        learning_rate=1e-3,
        late_learning_rate=2.5e-4,
        n_step=3,
        target_every=1,
        target_encoder="online",
        q_regularisation=False,
        contrastive=False,
        head_width=512,
        head_norm=True,
    ),
    transfer=TransferConfig(source="auto", heads="auto", warmup_updates=500),
    # A processor whose bf16 products are faster than its fp32 ones is still no faster on networks this small.
    training=TrainingConfig(frames=100_000, eval_episodes=5, precision="fp32"),
)

# What learns the paper's tasks best on two CPU cores (docs/results.md): policy tokens read a map of convolutions cell
# by cell, self-prediction goes beside the critics' loss, and cut training episodes show more goals and starts.
COMPACT = replace(
    COMPACT_VIT,
    preset="compact",
    env=EnvConfig(image_size=64),
    encoder=EncoderConfig(kind="conv", patch_size=4, dim=48, feature_dim=64, init="orthogonal", normalise_pixels=True),
    agent=AgentConfig(
        batch_size=128,
        learning_rate=1e-3,
        late_learning_rate=1e-4,
        rate_schedule="linear",
        weight_decay=0.0,
        rewards="frame",
        discount=0.98,
        prediction=True,
        frames_per_update=4,
        actor_every=1,
        target_every=1,
        past_actions=2,
        head_updates=2,
        critic_tau=0.05,
        target_encoder="online",
        q_regularisation=False,
        contrastive=False,
        shift=3,
        head_width=256,
        head_norm=True,
    ),
    training=replace(COMPACT_VIT.training, seed_steps=250, episode_frames=500, eval_episodes=10, precision="auto"),
)

# A candidate for `compact`: policy tokens read positions, which tell more of goals that were not seen
# (docs/results.md); an update takes about 1.8 times as long.
PLACES = replace(
    COMPACT,
    preset="places",
    encoder=replace(COMPACT.encoder, kind="places", stem_width=16, dim=32),
    agent=replace(COMPACT.agent, encoder_lr_scale=3.0, same_shift=True),
)

# `compact` at the paper's size, for a GPU: its image, width D and batch, and DrQ-v2's rate of updates.
GPU = replace(
    COMPACT,
    preset="gpu",
    env=EnvConfig(image_size=84),
    encoder=replace(COMPACT.encoder, dim=192),
    agent=replace(COMPACT.agent, batch_size=512, frames_per_update=2, shift=4, head_width=1024),
)

# For tests: every part real, everything small.
TINY = replace(
    COMPACT_VIT,
    preset="tiny",
    encoder=replace(COMPACT_VIT.encoder, dim=16, heads=2, stem_width=8, feature_dim=16),
    agent=replace(
        COMPACT_VIT.agent, batch_size=16, head_width=32, contrastive=True, projector_hidden=16, projector_dim=8
    ),
    transfer=PAPER.transfer,
    training=TrainingConfig(
        frames=400,
        seed_steps=20,
        replay_capacity=1000,
        eval_every_frames=200,
        eval_episodes=1,
        final_episodes=1,
        checkpoint_every_frames=100,
        log_every_steps=10,
        precision="fp32",
    ),
)

_ALL = (
    *(COMPACT, PLACES, COMPACT_VIT, GPU, PAPER, OFFICIAL),
    *(DRQ, DRQ_CONTRASTIVE, RESNET50_SAC, DREAMER, DREAMER_COMPACT, TINY),
)
PRESETS = {config.preset: config for config in _ALL}


def preset(name: str) -> Config:
    """The preset called `name`.

    >>> preset("paper").agent.batch_size
    512
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(PRESETS)}"
        raise ConfigError(f"unknown preset {name!r}: {hint}")
    return PRESETS[name]


def make_config(
    tasks: Sequence[str], preset_name: str, frames: int | None, seed: int, overrides: Mapping[str, Any]
) -> Config:
    """A preset with changes, every one of them checked.

    >>> make_config(["toy/reach"], "tiny", 100, 1, {"agent.discount": 0.9}).agent.discount
    0.9
    """
    data = json.loads(to_json(preset(preset_name))) | {"tasks": list(tasks), "seed": seed}
    if frames is not None:
        data["training"]["frames"] = frames
    return overridden(_checked(data), overrides)


def overridden(config: Config, overrides: Mapping[str, Any], sections: Sequence[str] = SECTIONS) -> Config:
    """The config with other values for settings of these sections, by their dotted names."""
    data = json.loads(to_json(config))
    for name, value in overrides.items():
        section, _, field = name.partition(".")
        if section not in sections or field not in data[section]:
            example = f"{sections[0]}.{next(iter(data[sections[0]]))}"
            raise ConfigError(f"unknown setting {name!r}: settings look like {example!r}")
        data[section][field] = value
    return _checked(data)


def _checked(data: dict[str, Any]) -> Config:
    try:
        return from_json(json.dumps(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"settings are numbers, words and lists of them: {error}") from None
