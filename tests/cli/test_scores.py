"""`ctrlformer scores`: what it counts, compares, prints and refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import report_folders
from hypothesis import strategies as st
from report_folders import config
from scored_runs import RUN, SEQUENCE, TOGETHER, Row, one_task, row, write

from ctrlformer.analysis.methods import RunSettings
from ctrlformer.analysis.metrics import RunScores, retest_matrix_markdown
from ctrlformer.analysis.run_groups import ScoredRun
from ctrlformer.cli.scores import as_table, main, score_groups, summarise
from ctrlformer.config import Config, TransferConfig
from ctrlformer.errors import ConfigError, RunError

scores = st.floats(-1e4, 1e4, allow_subnormal=False)


def discounting(settings: Config, discount: float) -> Config:
    return dataclasses.replace(settings, agent=dataclasses.replace(settings.agent, discount=discount))


def longer(settings: Config, **training: int) -> Config:
    return dataclasses.replace(settings, training=dataclasses.replace(settings.training, **training))


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
        found = {(one.measure, one.task): one.statistic for one in summarise(self.RUNS).lines}
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
        counts = {(one.measure, one.task): (one.statistic.runs, one.frames) for one in summary.lines}
        assert counts["score", "a"] == (3, (50, 50))
        assert counts["forgetting", "a"] == (2, None)
        assert summary.incomplete == ("early",)

    def test_transfer_beside_scratch(self) -> None:
        found = {(one.measure, one.task): one for one in summarise(self.RUNS, self.SCRATCH).comparisons}
        assert {task for _, task in found} == {"b"}
        gain, percent, forward = (
            found[name, "b"].gain for name in ("transfer - scratch", "benefit, % of scratch", "forward transfer")
        )
        assert (gain.comparison.mean, gain.comparison.paired, gain.frames) == (200, True, (100, 100))
        assert percent.comparison.mean == pytest.approx(100 * 200 / 410)
        assert forward.comparison.mean == pytest.approx((0.32 - 0.205) / (1 - 0.205))
        assert forward.frames == (0, 100)

    def test_both_sides_are_scored_where_the_shorter_one_ends(self) -> None:
        shorter = [one_task(1, (0, 4.0), (10, 40.0))]
        (line, *_) = summarise(self.RUNS, shorter, frames=100).comparisons
        assert (line.gain.comparison.mean, line.gain.frames) == (30.0 - 40.0, (0, 10))

    def test_scratch_runs_that_compare_with_nothing(self) -> None:
        unknown = RunSettings(None, None)
        runs = [ScoredRun(run, unknown) for run in self.RUNS]
        for scratch in (one_task(1, (0, 1.0), (9, 2.0), task="a"), TOGETHER):
            with pytest.raises(RunError, match="no task"):
                score_groups(runs, [ScoredRun(scratch, unknown)])

    def test_a_task_learnt_together_with_others_is_compared(self) -> None:
        comparisons = summarise([TOGETHER], [one_task(1, (0, 1.0), (100, 250.0))]).comparisons
        assert [one.gain.comparison.mean for one in comparisons] == [250.0, 100.0]  # one evaluation makes no curve


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
        for title in ("## Over runs", "## Retests", "## Transfer beside scratch", "## Continual World's figures"):
            assert title in printed
        assert "| a | 800.0 ± 0.0 | 700.0 | 740.0 |" in printed
        assert f"{early} has not come to the end" in printed
        (data,) = json.loads((tmp_path / "scores.json").read_text())["groups"]
        assert data["runs"][0]["retests"] == [[800, 700, 740], [None, 600, 630], [None, None, 900]]
        assert data["figures"][0]["iqm"] == 800
        assert list(data["continual_world"]) == ["performance", "forgetting"]
        assert data["continual_world"]["performance"]["mean"] == pytest.approx((740 + 630 + 900) / 3000)
        assert {one["task"] for one in data["comparisons"]} == {"b"}

    def test_probes_are_a_matrix(
        self, folders: Callable[[str, Sequence[Row]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        started = {"chosen": "a", "heads": True}
        probes = [
            row(1, "b", "probe", 8, 5.0) | {"source": "random actions"} | started,
            row(1, "b", "probe", 8, 50.0) | {"source": "a"} | started,
        ]
        main([folders("run", [*SEQUENCE, *probes])], [], None, tmp_path / "scores.json")
        printed = capsys.readouterr().out
        assert "| policy | in b |\n|---|---|\n| random actions | 5.0 |\n| a | 50.0 |" in printed
        assert "| starts from | a with its heads |" in printed
        (data,) = json.loads((tmp_path / "scores.json").read_text())["groups"]
        assert data["probes"]["scores"] == [[[5.0]], [[50.0]]]
        assert data["probes"]["starts"] == [{"a with its heads": 1}]

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


class TestSettings:
    """Only runs that differ in nothing but their seeds are scored together."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Callable[[Config, Sequence[Row]], Path]:
        numbers = itertools.count()
        return lambda settings, rows: report_folders.write(tmp_path / f"run{next(numbers)}", settings, rows)

    @staticmethod
    def groups(runs: list[Path], scratch: list[Path] | None = None) -> list[dict[str, Any]]:
        file = runs[0].parent / "scores.json"
        main(runs, scratch or [], None, file)
        found: list[dict[str, Any]] = json.loads(file.read_text())["groups"]
        return found

    def test_runs_with_other_settings_are_not_seeds_of_one_another(
        self, folder: Callable[[Config, Sequence[Row]], Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = [config("a"), discounting(config("a", seed=2), 0.5), config("a", seed=3)]
        runs = [folder(one, [row(0, "a", "final", 400, 100.0 * one.seed)]) for one in settings]
        groups = self.groups(runs)
        assert [[run["seed"] for run in group["runs"]] for group in groups] == [[1, 3], [2]]
        assert [(group["figures"][0]["runs"], group["figures"][0]["mean"]) for group in groups] == [(2, 200), (1, 200)]
        assert [group["differs"] for group in groups] == ["agent.discount 0.99", "agent.discount 0.5"]
        printed = capsys.readouterr().out
        assert "# agent.discount 0.5\n" in printed
        assert "# agent.discount 0.99\n" in printed

    def test_runs_of_one_group_have_no_heading(
        self, folder: Callable[[Config, Sequence[Row]], Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = [config("a"), config("a", seed=2)]
        elsewhere = dataclasses.replace(settings[1].training, device="cpu", threads=1, eval_episodes=3)
        settings[1] = dataclasses.replace(settings[1], training=elsewhere)
        (group,) = self.groups([folder(one, [row(0, "a", "final", 400, 1.0)]) for one in settings])
        assert (group["differs"], group["method"], group["budget"]) == ("", "tiny", [400])
        assert capsys.readouterr().out.startswith("## Over runs")

    @pytest.mark.parametrize(
        ("settings", "headings"),
        [
            (dataclasses.replace(config("a"), preset="drq"), ["tiny", "drq"]),
            (longer(config("a"), frames=800), ["400 frames", "800 frames"]),
            (longer(config("a"), seed_steps=7), ["training.seed_steps 20", "training.seed_steps 7"]),
            (config("a", "b"), ["400 frames", "400 + 400 frames"]),
        ],
    )
    def test_what_else_sets_runs_apart(
        self, settings: Config, headings: list[str], folder: Callable[[Config, Sequence[Row]], Path]
    ) -> None:
        runs = [folder(one, [row(0, "a", "final", 400, 1.0)]) for one in (config("a"), settings)]
        found = [group["differs"] for group in self.groups(runs)]
        assert len(found) == 2
        assert all(text.startswith(heading) for text, heading in zip(found, headings, strict=True))

    def test_how_an_added_stage_transfers_sets_runs_apart(
        self, folder: Callable[[Config, Sequence[Row]], Path]
    ) -> None:
        ways = [TransferConfig(protect=protect) for protect in ("none", "freeze")]
        groups = self.groups([folder(config("a", "b", transfer=way), report_folders.PAIR) for way in ways])
        assert [group["differs"] for group in groups] == ["transfer.protect none", "transfer.protect freeze"]
        with_one_stage = [folder(config("a"), report_folders.PAIR[:3])]
        with_one_stage += [folder(config("a", "b", transfer=way), report_folders.PAIR) for way in ways]
        assert [group["differs"] for group in self.groups(with_one_stage)] == [
            "400 frames",
            "transfer.protect none, 400 + 400 frames",
            "transfer.protect freeze, 400 + 400 frames",
        ]
        alone = [dataclasses.replace(config("a"), transfer=way) for way in ways]
        assert len(self.groups([folder(one, [row(0, "a", "final", 400, 1.0)]) for one in alone])) == 1

    def test_runs_without_settings_are_a_group_of_their_own(
        self, folder: Callable[[Config, Sequence[Row]], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows = [row(0, "a", "final", 400, 1.0)]
        old, older = write(tmp_path / "old", rows), write(tmp_path / "older", rows, config='{"agent": {"discount": 1}}')
        bare = write(tmp_path / "bare", rows, config=None)
        groups = self.groups([folder(config("a"), rows), old, older, bare])
        assert [len(group["runs"]) for group in groups] == [1, 1, 1, 1]
        assert "whether these runs differ in their seeds only is not known" in capsys.readouterr().out

    def test_untrusted_settings_are_shown_as_plain_text(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows = [row(0, "a", "final", 400, 1.0)]
        nasty = [{"agent": {"x\n# y": f"\ud800\x1b[31m{number}" + "z" * 9000}} for number in range(2)]
        self.groups([write(tmp_path / f"run{i}", rows, config=json.dumps(one)) for i, one in enumerate(nasty)])
        headings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")]
        assert len(headings) == 2
        assert all(line.isprintable() and len(line) < 600 for line in headings)

    def test_scratch_runs_are_compared_with_runs_of_their_own_settings(
        self, folder: Callable[[Config, Sequence[Row]], Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        transfer = TransferConfig(heads="copy")
        pair = config("a", "b", transfer=transfer)
        runs = [folder(pair, report_folders.PAIR), folder(discounting(pair, 0.5), report_folders.PAIR)]
        scratch = [
            folder(config("b"), report_folders.scratch("b", (0, 0.0), (100, 300.0))),
            folder(discounting(config("b"), 0.5), report_folders.scratch("b", (0, 0.0), (100, 450.0))),
        ]
        gains = [group["comparisons"][0]["mean"] for group in self.groups(runs, scratch)]
        assert gains == [200, 50]
        first, second = self.groups(runs, scratch[:1])
        assert (first["comparisons"][0]["mean"], second["comparisons"]) == (200, [])
        assert "no --scratch run has the settings of these runs" in capsys.readouterr().out

    def test_scratch_runs_of_no_run_s_settings_are_refused_with_the_difference(
        self, folder: Callable[[Config, Sequence[Row]], Path]
    ) -> None:
        run = folder(config("a", "b"), report_folders.PAIR)
        rows = report_folders.scratch("b", (0, 0.0), (100, 300.0))
        with pytest.raises(RunError, match=r"run1 .*agent\.discount is 0\.5, not 0\.99"):
            main([run], [folder(discounting(config("b"), 0.5), rows)], None, None)
        with pytest.raises(RunError, match=r"run2 .*the preset is drq, not tiny"):
            main([run], [folder(dataclasses.replace(config("b"), preset="drq"), rows)], None, None)

    def test_scratch_runs_of_several_budgets_are_refused_and_another_one_is_told(
        self, folder: Callable[[Config, Sequence[Row]], Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = folder(config("a", "b"), report_folders.PAIR)
        rows = report_folders.scratch("b", (0, 0.0), (100, 300.0))
        short, long = (folder(longer(config("b"), frames=frames), rows) for frames in (400, 800))
        with pytest.raises(RunError, match=r"run1 and .*run2 learn b for 400 and for 800 frames"):
            main([run], [short, long], None, None)
        main([run], [long], None, None)
        assert "b: a stage of 400 frames here, of 800 from scratch" in capsys.readouterr().out
