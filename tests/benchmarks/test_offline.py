"""The offline bench on short recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import offline
from benchmarks.offline import COMPETENCES, Episodes, _discounted, record, score
from ctrlformer.config.presets import make_config

TASK = "cartpole_balance"
SMALL = {"env.image_size": 16, "encoder.stem_width": 8, "encoder.dim": 8, "encoder.feature_dim": 8}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    file = tmp_path_factory.mktemp("offline") / "episodes.npz"
    record(TASK, frames=1500, seed=1, episodes=3, size=16, file=file)
    return Episodes.load(file)


def test_episodes_of_every_competence_are_stored(data: Episodes) -> None:
    assert np.bincount(data.competence).tolist() == [3] * len(COMPETENCES)
    assert data.frames.shape == (9, 126, 16, 16, 3)
    assert data.rewards.shape == (9, 125)
    assert data.states.shape[:2] == (9, 126)
    assert not np.array_equal(data.frames[0, 0], data.frames[0, -1])


def test_held_out_episodes_are_not_trained_on(data: Episodes) -> None:
    train, test = data.split(most=None)
    assert sorted([*train, *test]) == list(range(9))
    assert len(data.split(most=1)[0]) == len(COMPETENCES)


def test_returns_sum_discounted_rewards_and_go_on_after_the_end() -> None:
    rewards = np.ones((1, 30), np.float32)
    assert _discounted(rewards, 0.9) == pytest.approx(np.full((1, 30), 10.0))
    rewards[0, 0] = 3.0
    assert float(_discounted(rewards, 0.9)[0, 0]) == pytest.approx(12.0)


def test_critics_learn_the_returns_of_what_they_see(data: Episodes) -> None:
    config = make_config([TASK], "compact", None, 1, {**SMALL, "agent.batch_size": 32, "agent.shift": 0})
    early, late = score(data, config, None, (2, 150))
    assert late["returns_seen"] > max(0.2, early["returns_seen"])
    assert len(late["state_unseen"]) == data.states.shape[-1]


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_a_file_without_episodes_is_one_line_and_exit_2(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "episodes.npz"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr("sys.argv", ["offline", "score", str(file)])
    assert offline.main() == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert str(file) in shown
