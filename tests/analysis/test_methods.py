"""Which settings make runs comparable, and how a method is named."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from report_folders import config

from ctrlformer.analysis.methods import Method, RunSettings
from ctrlformer.config import Config, TransferConfig, to_json


def settings(of: Config) -> RunSettings:
    return RunSettings(json.loads(to_json(of)), of)


def changed(section: str, **values: Any) -> RunSettings:
    plain = config("a")
    return settings(dataclasses.replace(plain, **{section: dataclasses.replace(getattr(plain, section), **values)}))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("env", "action_repeat", 3),
        ("encoder", "dim", 32),
        ("agent", "contrastive", False),
        ("dreamer", "horizon", 7),
        ("training", "seed_steps", 7),
        ("training", "replay_capacity", 500),
    ],
)
def test_what_decides_on_learning_is_in_the_name(section: str, name: str, value: Any) -> None:
    told = {False: "off"}.get(value, str(value))
    assert changed(section, **{name: value}).method.name == f"tiny, {section}.{name} {told}"


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("training", "frames", 800), ("training", "device", "cpu"), ("training", "eval_episodes", 9)],
)
def test_budget_place_and_watching_are_no_method(section: str, name: str, value: Any) -> None:
    found = changed(section, **{name: value})
    assert found.method.name == "tiny"
    assert f"{section}.{name}" in found.changes


def test_the_same_weights_may_lie_in_another_place() -> None:
    plain = config("a")
    agent = dataclasses.replace(plain.agent, shift=0, q_regularisation=False, contrastive=False)
    encoder = dataclasses.replace(plain.encoder, kind="resnet50", normalise_pixels=False, weights_sha256="0" * 64)
    here, there = (
        settings(dataclasses.replace(plain, agent=agent, encoder=dataclasses.replace(encoder, weights=path)))
        for path in ("/here", "/there")
    )
    assert here.method.name == there.method.name


def test_every_stage_s_way_of_transfer_counts() -> None:
    ways = [TransferConfig(protect="freeze"), TransferConfig(protect="rehearse")]
    plain = config("a", "b", "c")
    both, last = (
        dataclasses.replace(
            plain,
            added=tuple(
                dataclasses.replace(stage, transfer=way) for stage, way in zip(plain.added, order, strict=True)
            ),
        )
        for order in (ways, [ways[1], ways[1]])
    )
    assert "transfer.protect freeze then rehearse" in settings(both).method.name
    assert "transfer.protect rehearse" in settings(last).method.name
    assert settings(both).plain_method == settings(last).plain_method


def test_an_unknown_preset_is_told_by_the_defaults() -> None:
    plain = Config(preset="mine", agent=dataclasses.replace(Config().agent, discount=0.5))
    assert settings(plain).method.name == "mine, agent.discount 0.5"


def test_settings_of_another_version_are_told_apart_by_a_digest() -> None:
    raw = json.loads(to_json(config("a")))
    names = set()
    for more in ({}, {"new": 1}, {"new": 2}, {"new": 2, "seed": 7}):
        found = RunSettings(raw | more, None).method
        assert isinstance(found, Method)
        names.add(found.name)
    assert len(names) == 3
    assert all(name.startswith("tiny, config.json of another version (") for name in names)
