"""Which episodes a training is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config, start

from ctrlformer.training import trainer


def test_evaluations_during_a_stage_play_other_episodes_and_the_last_one_those_of_retests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[range] = []
    evaluate = trainer.evaluate

    def noted(agent: Any, env: Any, task: str, episodes: int, *rest: Any, first: int = 0, **more: Any) -> list[float]:
        played.append(range(first, first + episodes))
        return evaluate(agent, env, task, episodes, *rest, first=first, **more)

    monkeypatch.setattr(trainer, "evaluate", noted)
    start(tmp_path / "run", small_config("toy/reach", "toy/slide", training__eval_episodes=2))
    *learning, final, retest = played[len(played) // 2 :]  # the second stage's, then the first task again
    assert len(learning) >= 2
    assert not any(set(a) & set(b) for number, a in enumerate(learning) for b in learning[:number])
    assert final == retest
