"""What the rows about whole trainings read out of a run."""

from __future__ import annotations

from pathlib import Path

import small_runs

from benchmarks.table import Sample
from benchmarks.training_rows import SEED_STEPS, learning_figures, part_seconds, training_config
from ctrlformer.config.presets import preset


def test_only_rows_after_learning_began_count() -> None:
    rows = [
        {"frames": 80, "updates": 0, "seconds": 1.0, "learner_busy": 0.0},
        {"frames": 160, "updates": 4, "seconds": 1.0, "learner_busy": 0.4},
        {"frames": 240, "updates": 14, "seconds": 2.0, "learner_busy": 0.9},
        {"frames": 320, "updates": 24, "seconds": 4.0, "learner_busy": 0.8},
    ]
    speed, busy = learning_figures(rows)
    assert speed == Sample(1800.0, 1200.0, 2400.0, 2)
    assert (busy.low, busy.high, busy.repeats) == (0.8, 0.9, 2)


def test_a_real_run_has_the_figures(tmp_path: Path) -> None:
    speed, busy = learning_figures(small_runs.start(tmp_path / "run").read_metrics())
    assert speed.low > 0
    assert 0 < busy.low <= busy.high <= 1


def test_the_training_is_the_preset_without_interruptions() -> None:
    config = training_config(learnt_steps=50)
    assert config.preset == "compact"
    assert config.training.frames == (SEED_STEPS + 50) * 8 == config.training.eval_every_frames
    assert config.agent == preset("compact").agent


def test_parts_take_time() -> None:
    assert 0 < part_seconds(training_config(learnt_steps=1)) < 60
