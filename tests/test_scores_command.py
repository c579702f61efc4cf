"""`ctrlformer scores`: what it counts, compares, prints and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st
from scored_runs import RUN, SEQUENCE, TOGETHER, Row, one_task, row, write

from ctrlformer.errors import ConfigError, RunError
from ctrlformer.measures import (
    RunScores,
    retest_matrix_markdown,
)
from ctrlformer.scores_command import as_table, main, summarise

scores = st.floats(-1e4, 1e4, allow_subnormal=False)


def learner(seed: int, bonus: float = 0.0) -> RunScores:
    rows = [one | {"mean": one["mean"] + bonus} for one in SEQUENCE]
    return RunScores.of(f"seed{seed}", seed, rows)


class TestSummary:
    RUNS = (learner(1), learner(2, 20.0))
    SCRATCH = (one_task(1, (0, 0.0), (100, 400.0)), one_task(2, (0, 0.0), (100, 420.0)))

    def test_the_matrix_over_runs_as_markdown(self) -> None:
        assert retest_matrix_markdown(self.RUNS).splitlines() == [
            "| task | after a | after b | after c |",
            "|---|---|---|---|",
            "| a | 810.0 ± 10.0 | 710.0 ± 10.0 | 750.0 ± 10.0 |",
            "| b |  | 610.0 ± 10.0 | 640.0 ± 10.0 |",
            "| c |  |  | 910.0 ± 10.0 |",
        ]
        short = RunScores.of("short", 3, SEQUENCE[:3])
        assert "| a | 800.0 ± 0.0 | 700.0 | 740.0 |" in retest_matrix_markdown([short, RUN])
        assert "after a + b | after c" in retest_matrix_markdown([TOGETHER])

    def test_runs_of_other_curricula_are_not_mixed(self) -> None:
        with pytest.raises(RunError, match="together and sequence learn other tasks"):
            retest_matrix_markdown([RUN, TOGETHER])

    def test_every_measure_over_runs(self) -> None:
        found = {(one.measure, one.task): one.statistic for one in summarise(self.RUNS).figures}
        means = {key: statistic.mean for key, statistic in found.items()}
        assert means.pop(("average over tasks", None)) == pytest.approx((750 + 640 + 910) / 3)
        assert means.pop(("retest / final", "a")) == pytest.approx((740 / 800 + 760 / 820) / 2)
        assert means.pop(("retest / final", "b")) == pytest.approx((630 / 600 + 650 / 620) / 2)
        assert means == {
            ("score", "a"): 810,
            ("score", "b"): 610,
            ("score", "c"): 910,
            ("last retest", "a"): 750,
            ("retest - final", "a"): -60,
            ("forgetting", "a"): 80,
            ("last retest", "b"): 640,
            ("retest - final", "b"): 30,
            ("forgetting", "b"): -30,
            ("mean forgetting", None): 25,
        }
        assert {statistic.runs for statistic in found.values()} == {2}

    def test_runs_on_their_way_count_in_scores_only(self) -> None:
        summary = summarise([*self.RUNS, RunScores.of("early", 3, SEQUENCE[:8])], frames=50)
        counts = {(one.measure, one.task): (one.statistic.runs, one.frames) for one in summary.figures}
        assert counts["score", "a"] == (3, (50, 50))
        assert counts["forgetting", "a"] == (2, None)
        assert summary.incomplete == ("early",)

    def test_transfer_beside_scratch(self) -> None:
        found = {(one.measure, one.task): one for one in summarise(self.RUNS, self.SCRATCH).contrasts}
        assert {task for _, task in found} == {"b"}
        gain, percent, forward = (
            found[name, "b"] for name in ("transfer - scratch", "benefit, % of scratch", "forward transfer")
        )
        assert (gain.comparison.mean, gain.comparison.paired, gain.frames) == (200, True, (100, 100))
        assert percent.comparison.mean == pytest.approx(100 * 200 / 410)
        assert forward.comparison.mean == pytest.approx((0.32 - 0.205) / (1 - 0.205))
        assert forward.frames == (0, 100)

    def test_both_sides_are_scored_where_the_shorter_one_ends(self) -> None:
        shorter = [one_task(1, (0, 4.0), (10, 40.0))]
        (gain, *_) = summarise(self.RUNS, shorter, frames=100).contrasts
        assert (gain.comparison.mean, gain.frames) == (30.0 - 40.0, (0, 10))

    def test_scratch_runs_that_compare_with_nothing(self) -> None:
        with pytest.raises(RunError, match="no task"):
            summarise(self.RUNS, [one_task(1, (0, 1.0), (9, 2.0), task="a")])
        with pytest.raises(RunError, match="no task"):
            summarise(self.RUNS, [TOGETHER])

    def test_a_task_learnt_together_with_others_is_compared(self) -> None:
        contrasts = summarise([TOGETHER], [one_task(1, (0, 1.0), (100, 250.0))]).contrasts
        assert [one.comparison.mean for one in contrasts] == [250.0, 100.0]  # one evaluation makes no curve


class TestCommand:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> Callable[[str, Sequence[Row]], Path]:
        return lambda name, rows: write(tmp_path / name, rows)

    def test_tables_as_markdown_and_the_file(
        self, folders: Callable[[str, Sequence[Row]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run, early = folders("run", SEQUENCE), folders("early", SEQUENCE[:4])
        scratch = folders("scratch", [row(0, "b", "learn", 0, 0.0), row(0, "b", "final", 100, 400.0)])
        main([run, early], [scratch], None, tmp_path / "scores.json")
        printed = capsys.readouterr().out
        for title in ("## Over runs", "## Retests", "## Transfer beside scratch"):
            assert title in printed
        assert "| a | 800.0 ± 0.0 | 700.0 | 740.0 |" in printed
        assert f"{early} has not come to the end" in printed
        data = json.loads((tmp_path / "scores.json").read_text())
        assert data["runs"][0]["retests"] == [[800, 700, 740], [None, 600, 630], [None, None, 900]]
        assert data["figures"][0]["iqm"] == 800
        assert {one["task"] for one in data["comparisons"]} == {"b"}

    def test_a_bracket_or_a_bar_in_a_name_is_only_a_character(self) -> None:
        runs = [RunScores.of("run", 1, [row(0, "gym/[red]|x", "final", 10, 1.0)])]
        ((title, cells),) = summarise(runs).tables().items()
        assert as_table(title, cells).row_count == 1
        assert "gym/[red]\\|x" in retest_matrix_markdown(runs)

    def test_mistakes_are_one_clear_line(self, folders: Callable[[str, Sequence[Row]], Path], tmp_path: Path) -> None:
        run = folders("run", [row(0, "a", "final", 10, 1.0)])
        with pytest.raises(ConfigError, match="name at least one"):
            main([], [], None, None)
        with pytest.raises(ConfigError, match="named twice"):
            main([run, run / ".." / "run"], [], None, None)
        with pytest.raises(ConfigError, match="--frames is -1"):
            main([run], [], -1, None)
        with pytest.raises(ConfigError, match="no folder"):
            main([run], [], None, tmp_path / "absent" / "scores.json")
        with pytest.raises(ConfigError, match="--maximum is 0"):
            main([run], [], None, None, maximum=0.0)
        with pytest.raises(RunError, match="no run has an evaluation within 9 frames"):
            main([run], [], 9, None)
