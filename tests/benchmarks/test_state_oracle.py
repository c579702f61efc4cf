"""The state oracle learns from real states, and its table tells what ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import state_oracle
from benchmarks.state_oracle import oracle_config, run, summary

SMALL = {
    "agent.head_width": 16,
    "agent.batch_size": 8,
    "agent.rewards": "step",
    "training.seed_steps": 20,
    "training.eval_every_frames": 200,
    "training.eval_episodes": 1,
}


@pytest.mark.parametrize("identity", [False, True])
def test_a_short_training_gives_a_curve_and_diagnostics(identity: bool) -> None:
    config, _ = oracle_config("reacher_easy", 1, "compact", SMALL, identity)
    row = run(config, 400, identity)
    assert [frames for frames, _, _ in row["curve"]] == [200, 400]
    assert 0 <= row["auc"] <= 1
    assert {"q", "temperature", "entropy", "feature_std", "monte_carlo"} <= set(row["diagnostics"])


def test_a_seed_repeats_its_run() -> None:
    config, _ = oracle_config("reacher_easy", 1, "compact", SMALL, False)
    first, second = (run(config, 200, False) for _ in range(2))
    assert first["diagnostics"] == second["diagnostics"]


def test_the_summary_groups_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.jsonl"
    words = ["oracle", "--seed", "1", "2", "--frames", "200", "--out", str(file), "--set"]
    words += [f"{name}={value}" for name, value in SMALL.items()]
    monkeypatch.setattr("sys.argv", words)
    state_oracle.main()
    table = summary(file).splitlines()
    assert len(table) == 3
    assert "agent.rewards=step" in table[-1]
    assert "| 2 |" in table[-1]
