"""stable-baselines3 really learns in the references made of it."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.listings import StackedBatch
from benchmarks.peers import sb3_training, sb3_update
from benchmarks.update_rows import agent_and_batch, with_agent
from ctrlformer.envs import make_env

sb3 = pytest.importorskip("stable_baselines3")


def test_a_gradient_step_uses_our_batch_and_network(monkeypatch: pytest.MonkeyPatch) -> None:
    models = []

    class Watched(sb3.SAC):
        def __init__(self, *arguments: object, **settings: object) -> None:
            super().__init__(*arguments, **settings)
            models.append(self)

    monkeypatch.setattr(sb3, "SAC", Watched)
    config = with_agent("drq", batch_size=4, q_regularisation=False, head_width=32)
    agent, batch = agent_and_batch(config)
    update = sb3_update(config, StackedBatch.of(batch))
    (model,) = models
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    update()
    after = model.policy.state_dict()
    extractor = [name for name in before if name.startswith("actor.features_extractor") and name.endswith("weight")]
    assert len(extractor) == 6  # four convolutions, linear, LayerNorm
    assert all(not before[name].equal(after[name]) for name in extractor)
    ours = sum(p.numel() for p in agent.encoder.parameters())
    assert sum(p.numel() for p in model.actor.features_extractor.parameters()) == ours
    hidden = [after[f"critic.qf0.{layer}.weight"].shape for layer in (0, 2, 4)]
    assert hidden == [(32, 51), (32, 32), (1, 32)]


def test_a_training_is_timed_in_pieces() -> None:
    config = with_agent("compact_vit", batch_size=2)
    with closing(make_env("toy/slide")) as env:
        seconds = sb3_training(env, config, seed_steps=3, steps=4, repeats=2)
    assert seconds.repeats == 2
    assert 0 < seconds.low <= seconds.median <= seconds.high
