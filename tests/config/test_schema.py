"""The JSON codec is exact and strict."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlformer.config import (
    AgentConfig,
    Config,
    EnvConfig,
    StageConfig,
    TrainingConfig,
    differences,
    from_json,
    to_json,
)
from ctrlformer.config.presets import PRESETS, preset
from ctrlformer.errors import ConfigError

configs = st.builds(
    Config,
    tasks=st.lists(st.text(max_size=20), unique=True, max_size=4).map(tuple),
    preset=st.sampled_from(sorted(PRESETS)),
    seed=st.integers(0, 2**31 - 1),
    env=st.builds(EnvConfig, action_repeat=st.none() | st.integers(1, 8), render=st.sampled_from(["fast", "exact"])),
    agent=st.builds(
        AgentConfig,
        learning_rate=st.floats(1e-9, 1.0),
        late_learning_rate=st.none() | st.floats(1e-9, 1.0),
        contrastive=st.booleans(),
    ),
    training=st.builds(TrainingConfig, frames=st.integers(1, 10**9)),
)


@given(configs)
def test_json_round_trip(config: Config) -> None:
    assert from_json(to_json(config)) == config


def edited(path: str, value: Any) -> str:
    data = json.loads(to_json(PRESETS["paper"]))
    *folders, name = path.split(".")
    place = data
    for folder in folders:
        place = place[folder]
    place[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("agent.discount", "high", r"agent\.discount: expected float"),
        ("agent.discount", 1.5, r"agent\.discount is 1\.5"),
        ("agent.batch_size", 2.5, r"agent\.batch_size: expected int"),
        ("agent.batch_size", True, r"agent\.batch_size: expected int"),
        ("agent.batch_size", 0, r"agent\.batch_size is 0"),
        ("agent.learning_rate", -1.0, r"agent\.learning_rate is -1\.0"),
        ("encoder.kind", "rnn", "not one of ctrlformer, places, conv, cnn"),
        ("encoder.heads", 5, "not a multiple"),
        ("encoder", [], "expected an object"),
        ("tasks", "cartpole", "expected a list"),
        ("tasks", ["a", "a"], "named twice"),
        ("seed", -1, "seed -1"),
        ("transfer.warmup_updates", -1, r"transfer\.warmup_updates is -1"),
        ("env.image_size", 30_000, r"env\.image_size is 30000"),
        ("encoder.dim", 1 << 40, r"encoder\.dim is"),
        ("agent.batch_size", 10**400, r"agent\.batch_size"),
        ("training.threads", 10**6, r"training\.threads is 1000000"),
        ("dreamer.horizon", 10**6, r"dreamer\.horizon is 1000000"),
        ("surprise", 1, r"unknown fields \['surprise'\]"),
    ],
)
def test_a_bad_value_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_json(edited(path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000])
def test_what_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        from_json(text)


def test_a_missing_field_is_named() -> None:
    data = json.loads(to_json(PRESETS["paper"]))
    del data["agent"]["discount"]
    with pytest.raises(ConfigError, match=r"missing fields \['discount'\]"):
        from_json(json.dumps(data))


def test_differences_name_the_field() -> None:
    paper = PRESETS["paper"]
    changed = dataclasses.replace(paper, encoder=dataclasses.replace(paper.encoder, dim=96))
    assert differences(paper, changed) == {"encoder.dim": (192, 96)}


def test_a_run_from_before_dreamer_is_read_as_it_was() -> None:
    data = json.loads(to_json(PRESETS["compact"]))
    del data["dreamer"], data["agent"]["kind"], data["agent"]["update_every"]
    assert from_json(json.dumps(data)) == PRESETS["compact"]


@pytest.mark.parametrize(("repeat", "rounds"), [(1, (8, 1)), (2, (4, 1)), (3, (2, 1)), (8, (1, 1)), (16, (1, 2))])
def test_updates_counted_by_frames_are_as_many_whatever_the_action_repeat(repeat: int, rounds: tuple[int, int]) -> None:
    assert AgentConfig(frames_per_update=8).update_rounds(repeat) == rounds
    assert AgentConfig(update_every=3, updates_per_step=2).update_rounds(repeat) == (3, 2)
    with pytest.raises(ConfigError, match="frames_per_update"):
        AgentConfig(frames_per_update=0)


def test_settings_that_are_gone_are_no_obstacle_to_reading_a_run_that_has_them() -> None:
    config = preset("tiny")
    data = json.loads(to_json(config))
    data["encoder"]["questions"], data["agent"]["painting_weight"] = 32, 0.0
    assert from_json(json.dumps(data)) == config


def test_a_run_from_before_probes_takes_the_previous_task_as_it_did() -> None:
    data = json.loads(to_json(dataclasses.replace(PRESETS["compact"], tasks=("a", "b"))))
    del data["transfer"]["source"], data["transfer"]["warmup_updates"]
    transfer = from_json(json.dumps(data)).transfer
    assert (transfer.source, transfer.warmup_updates) == ("previous", 0)


def test_a_source_is_learnt_before_the_stage_that_takes_it() -> None:
    named = dataclasses.replace(PRESETS["tiny"].transfer, source="b")
    with pytest.raises(ConfigError, match=r"'b' is no task learnt before b: choose one of auto, previous, none, a$"):
        Config(tasks=("a", "b", "c"), transfer=named)
    with pytest.raises(ConfigError, match=r"transfer.source 'b' is no task of this run: choose one of auto, previous"):
        Config(tasks=("a",), transfer=named)
    pair = Config(tasks=("a", "b"))
    assert dataclasses.replace(pair, added=(StageConfig(("c",), 10, named),)).stages[2].transfer.source == "b"
    with pytest.raises(ConfigError, match=r"'b' is no task learnt before c: choose one of auto, previous, none, a$"):
        Config(tasks=("a",), added=(StageConfig(("c",), 10, named),))
