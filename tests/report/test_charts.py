"""What the charts show."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_folders import PAIR, config, metrics, report_run, row, scratch

from ctrlformer.report import charts


def test_seeds_of_one_method_make_one_line_with_a_band(tmp_path: Path) -> None:
    runs = [
        report_run(tmp_path / "1", config("a", seed=1), scratch("a", (0, 0.0), (100, 100.0), (200, 300.0))),
        report_run(tmp_path / "2", config("a", seed=2), scratch("a", (0, 20.0), (50, 60.0), (100, 200.0))),
    ]
    (chart,) = charts.learning_curves(runs)
    (line,) = chart["series"]
    assert (chart["task"], line["label"], line["runs"]) == ("a", "tiny, from scratch", 2)
    assert line["x"] == [0, 50, 100], "as far as all seeds have come"
    assert line["y"] == [10.0, 55.0, 150.0], "between evaluations a curve is a straight line"
    assert line["low"] == [0.0, 50.0, 100.0]
    assert line["high"] == [20.0, 60.0, 200.0]


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    (chart,) = charts.learning_curves([report_run(tmp_path / "1", config("a"), scratch("a", (0, 0.0), (10, 5.0)))])
    assert chart["series"][0]["low"] == []


def test_scratch_and_transfer_are_two_lines_of_one_task(tmp_path: Path) -> None:
    runs = [
        report_run(tmp_path / "pair", config("a", "b"), PAIR),
        report_run(tmp_path / "alone", config("b"), scratch("b", (0, 0.0), (100, 300.0))),
    ]
    curves = {chart["task"]: [line["label"] for line in chart["series"]] for chart in charts.learning_curves(runs)}
    assert curves == {"a": ["tiny, from scratch"], "b": ["tiny, after a", "tiny, from scratch"]}


def test_the_first_stage_of_a_transfer_counts_as_from_scratch(tmp_path: Path) -> None:
    runs = [
        report_run(tmp_path / "pair", config("a", "b", seed=1), PAIR),
        report_run(tmp_path / "alone", config("a", seed=2), scratch("a", (0, 0.0), (100, 300.0))),
    ]
    first = charts.learning_curves(runs)[0]
    assert [(line["label"], line["runs"]) for line in first["series"]] == [("tiny, from scratch", 2)]


def test_a_run_and_what_goes_on_from_it_count_once(tmp_path: Path) -> None:
    runs = [
        report_run(tmp_path / "alone", config("a", seed=1), PAIR[:3]),
        report_run(tmp_path / "pair", config("a", "b", seed=1), PAIR),
        report_run(tmp_path / "other", config("a", seed=2), PAIR[:3]),
    ]
    first = charts.learning_curves(runs)[0]
    assert [line["runs"] for line in first["series"]] == [2]


def test_a_whole_run_lays_its_stages_end_to_end(tmp_path: Path) -> None:
    (whole,) = charts.whole_runs([report_run(tmp_path / "pair", config("a", "b"), PAIR)])
    assert whole["borders"] == [{"x": 0, "label": "a"}, {"x": 100, "label": "b"}]
    first, second = whole["series"]
    assert (first["x"], first["y"]) == ([0, 50, 100, 200], [10.0, 400.0, 800.0, 600.0])
    assert first["retest"] == [False, False, False, True]
    assert second["x"] == [100, 200]


def test_training_figures_are_laid_end_to_end_and_thinned(tmp_path: Path) -> None:
    many = range(10, 20_010, 10)
    logged = metrics(0, many, q=1.5, critic_loss=2.0) + metrics(
        1, [10, 20], q=3.0, critic_loss=1.0, **{"drift/a": 0.25}
    )
    run = report_run(tmp_path / "run", config("a", "b"), [row(0, "a", "final", 20_000, 1.0)], logged)
    figures = {chart["name"]: chart["series"][0] for chart in charts.training_metrics([run])}
    assert set(figures) == {"q", "critic_loss", "drift/a", charts.SPEED}
    assert len(figures["q"]["x"]) == charts.MOST_POINTS
    assert figures["q"]["x"][0] <= 20
    assert figures["q"]["x"][-1] == 20_020
    assert set(figures["drift/a"]["y"]) == {0.25}
    assert figures[charts.SPEED]["y"][0] == pytest.approx(5.0)


def test_rows_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    logged = [*metrics(0, [10], q=1.0), {"frames": "many", "q": 2.0}, {"stage": 0, "frames": 30, "q": None}]
    (chart,) = charts.training_metrics([report_run(tmp_path / "run", config("a"), (), logged)])
    assert chart["series"][0]["y"] == [1.0]


def test_two_hundred_runs_keep_within_their_points(tmp_path: Path) -> None:
    one = report_run(tmp_path / "run", config("a"), (), metrics(0, range(10, 5010, 10), q=1.0, critic_loss=1.0))
    (first, *_) = charts.training_metrics([one] * 200)
    assert sum(len(line["x"]) for line in first["series"]) <= 200 * 20


def test_known_tasks_are_marked_with_what_others_reached() -> None:
    assert charts.reference_marks("cartpole_swingup") == [
        {"label": "paper, 100k", "y": 759},
        {"label": "drq_planet, 100k", "y": 777},
    ]
    assert charts.reference_marks("toy/reach") == []
