"""The supervised probe tells an encoder that sees from one that does not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import probe as module
from benchmarks.cartpole_states import STATE_NAMES, LabelledStacks, cartpole_states
from benchmarks.probe import _shifted, main, probe
from ctrlformer.config.presets import preset
from ctrlformer.errors import ConfigError


@pytest.fixture(scope="module")
def data() -> tuple[LabelledStacks, LabelledStacks]:
    stacks = cartpole_states(320, seed=0)
    return LabelledStacks(*(part[:256] for part in stacks)), LabelledStacks(*(part[256:] for part in stacks))


def test_states_belong_to_their_pictures(data: tuple[LabelledStacks, LabelledStacks]) -> None:
    train, _ = data
    assert train.pixels.shape == (256, 84, 84, 9)
    assert train.states.shape == (256, len(STATE_NAMES))
    # The cart is the only thing that moves sideways near the rail: its centre of change follows its position.
    change = np.abs(train.pixels[..., 6:].astype(float) - np.median(train.pixels[..., 6:], axis=0)).sum(-1)  # (N, H, W)
    rail = change[:, 36:48].sum(1)  # (N, W)
    seen = rail.sum(1) > 0
    centre = (rail * np.arange(84)).sum(1)[seen] / rail.sum(1)[seen]
    assert np.corrcoef(centre, train.states[seen, 0])[0, 1] > 0.8


def test_the_same_seed_gives_the_same_states() -> None:
    first, second = cartpole_states(8, seed=5), cartpole_states(8, seed=5)
    assert np.array_equal(first.pixels, second.pixels)
    assert np.array_equal(first.states, second.states)


def test_learning_reads_the_cart_position_and_centred_pixels_spread_the_features(
    data: tuple[LabelledStacks, LabelledStacks],
) -> None:
    compact = preset("compact_vit")
    small = replace(compact, encoder=replace(compact.encoder, dim=32, stem_width=16))
    learnt = probe(small, data, updates=60, learning_rate=2e-3)
    untrained = probe(small, data, updates=1, learning_rate=1e-9)
    assert learnt.r2[0] > max(0.3, untrained.r2[0])
    plain = probe(replace(small, encoder=replace(small.encoder, normalise_pixels=False)), data, updates=1)
    assert learnt.feature_std > 3 * plain.feature_std


def test_shifts_stay_within_their_bound() -> None:
    pixels = np.arange(10 * 10, dtype=np.uint8).reshape(1, 10, 10, 1).repeat(50, axis=0)
    moved = _shifted(pixels, 2, np.random.default_rng(0))
    assert moved.shape == pixels.shape
    corners = {(int(value) // 10, int(value) % 10) for value in moved[:, 5, 5, 0]}
    assert corners <= {(row, column) for row in range(3, 8) for column in range(3, 8)}
    assert len(corners) > 10


def test_the_command_writes_its_table(
    data: tuple[LabelledStacks, LabelledStacks],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "probe_data", lambda seed: data)  # rendering 2,000 states takes half a minute
    main(["tiny"], updates=2, learning_rate=1e-3, seed=0, json_file=tmp_path / "probe.json")
    assert "tiny" in capsys.readouterr().out
    written = json.loads((tmp_path / "probe.json").read_text())
    assert len(written["encoders"]["tiny"]["r2"]) == len(STATE_NAMES)
    with pytest.raises(ConfigError, match="updates is 0"):
        main(["tiny"], updates=0, learning_rate=1e-3, seed=0, json_file=None)
