"""Retest matrices, and what is kept and helped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from report_folders import PAIR, config, report_run, row, scratch

from ctrlformer.report.retests import effects, probe_matrices, retest_matrices


def test_the_matrix_has_a_line_per_task_and_a_column_per_stage(tmp_path: Path) -> None:
    (matrix,) = retest_matrices([report_run(tmp_path / "pair", config("a", "b"), PAIR)])
    assert (matrix.method, matrix.seeds, matrix.stages) == ("tiny", 1, ["a", "b"])
    a, b = matrix.lines
    assert [cell.text for cell in a.cells] == ["800", "600"]
    assert [cell.level for cell in a.cells] == [0.8, 0.6]
    assert a.forgetting == "200"
    assert [cell.text for cell in b.cells] == ["", "500"]
    assert b.forgetting == b.transfer == "", "never retested, and no run from scratch to compare with"
    assert matrix.figures == {"performance": "0.55", "forgetting": "0.10"}


def test_seeds_share_a_matrix_and_have_intervals(tmp_path: Path) -> None:
    worse = [one | {"mean": one["mean"] - 100} if one["kind"] == "retest" else one for one in PAIR]
    runs = [
        report_run(tmp_path / "1", config("a", "b", seed=1), PAIR),
        report_run(tmp_path / "2", config("a", "b", seed=2), worse),
        report_run(tmp_path / "s1", config("b", seed=1), scratch("b", (0, 0.0), (100, 200.0))),
        report_run(tmp_path / "s2", config("b", seed=2), scratch("b", (0, 0.0), (100, 200.0))),
    ]
    (matrix,) = retest_matrices(runs)
    a, b = matrix.lines
    assert [cell.text for cell in a.cells] == ["800 ± 0", "550 ± 50"]
    assert a.forgetting == "250 [200, 300]"
    assert matrix.figures["forward transfer"] == "0.11 [0.11, 0.11]", "a has nothing to gain from, and counts"
    assert b.transfer == "0.22 [0.22, 0.22]", "areas of 0.3 and 0.1: 0.2 of the 0.9 that were left to gain"


def test_probes_of_all_runs_of_a_method_are_one_matrix(tmp_path: Path) -> None:
    started = {"chosen": "a", "heads": False}
    probes = [
        row(1, "b", "probe", 8, 5.0) | {"source": "random actions"} | started,
        row(1, "b", "probe", 8, 500.0) | {"source": "a"} | started,
    ]
    runs = [
        report_run(tmp_path / "1", config("a", "b", seed=1), [*PAIR, *probes]),
        report_run(tmp_path / "2", config("a", "b", seed=2), PAIR),
    ]
    (matrix,) = probe_matrices(runs)
    assert (matrix.method, matrix.runs, list(matrix.tasks)) == ("tiny", 1, ["b"])
    assert [(line.policy, line.cells[0].text, line.cells[0].level) for line in matrix.lines] == [
        ("random actions", "5", 0.005),
        ("a", "500", 0.5),
    ]
    assert matrix.starts == ["a with new heads"]
    assert probe_matrices(runs[1:]) == []


def test_effects_compare_at_the_frames_both_have_had(tmp_path: Path) -> None:
    alone = scratch("b", (0, 0.0), (100, 250.0), (400, 900.0))
    (effect,) = effects(
        [report_run(tmp_path / "p", config("a", "b"), PAIR), report_run(tmp_path / "s", config("b"), alone)]
    )
    assert (effect.task, effect.before, effect.frames) == ("b", "a", 100)
    assert (effect.transfer, effect.scratch, effect.scratch_seeds) == (500.0, 250.0, 1)
    assert (effect.kept, effect.kept_share) == ("75 %", 0.75)


def test_without_runs_from_scratch_only_what_is_kept_is_told(tmp_path: Path) -> None:
    (effect,) = effects([report_run(tmp_path / "p", config("a", "b"), PAIR)])
    assert (effect.scratch, effect.scratch_seeds) == (None, 0)
    (early,) = effects([report_run(tmp_path / "q", config("a", "b"), PAIR[:4])])
    assert (early.kept, early.kept_share) == ("not retested", None)


def test_a_task_learnt_together_with_others_is_not_from_scratch(tmp_path: Path) -> None:
    """Its own first stage is no scratch run, as in `ctrlformer scores`."""
    together = dataclasses.replace(config("b", seed=2), tasks=("b", "c"), together=True)
    rows = [row(0, task, kind, frames, 900.0) for task in "bc" for kind, frames in (("learn", 0), ("final", 100))]
    runs = [report_run(tmp_path / "p", config("a", "b"), PAIR), report_run(tmp_path / "t", together, rows)]
    (effect,) = effects(runs)
    assert (effect.scratch, effect.scratch_seeds) == (None, 0)
    (matrix,) = retest_matrices(runs)
    assert matrix.lines[1].transfer == ""
