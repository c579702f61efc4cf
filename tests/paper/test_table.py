"""The table beside the paper's numbers: from made-up evaluations of planned runs, without any training."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scored_runs import Row, row

from ctrlformer.paper import export
from ctrlformer.paper.experiments import EXPERIMENTS, SCALES
from ctrlformer.paper.plan import RUNS, Choice, Plan, PlannedRun, make_plan
from ctrlformer.paper.references import doubt, paper_scores, public_scores
from ctrlformer.paper.table import GAIN, MAINTAINABILITY, TRANSFERABILITY, Line, make_lines
from ctrlformer.storage.run_folder import RunFolder

SWINGUP, SPARSE = "cartpole_swingup", "cartpole_swingup_sparse"


def made_up(plan: Plan, out: Path, base: dict[str, float]) -> None:
    """Finished runs: a task scores its base, 100 more after another task and 50 less in a retest; plus its seed."""
    for run in plan.runs.values():
        folder = RunFolder.create(out / RUNS / run.name, run.config).path
        rows = [one for stage in range(len(run.config.stages)) for one in stage_rows(run, stage, base)]
        (folder / "evals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        (folder / "checkpoints" / "7").mkdir(parents=True)
        (folder / "checkpoints" / "last").write_text("7\n")
        done = {"position": {"stage": len(run.config.stages)}}
        (folder / "checkpoints" / "7" / "trainer.json").write_text(json.dumps(done))


def stage_rows(run: PlannedRun, number: int, base: dict[str, float]) -> list[Row]:
    stage, seed = run.config.stages[number], run.config.seed
    rows = []
    for task in stage.tasks:
        score = base[task] + 100.0 * (number > 0) + seed
        rows += [
            row(number, task, "learn", stage.frames // 2, score / 2),
            row(number, task, "final", stage.frames, score),
        ]
    for earlier in range(number):
        for task in run.config.stages[earlier].tasks:
            rows.append(row(number, task, "retest", stage.frames, base[task] + 100.0 * (earlier > 0) + seed - 50))
    return rows


def plan_of(experiment: str, scale: str, **changes: Any) -> Plan:
    return make_plan(Choice(EXPERIMENTS[experiment], SCALES[scale], **changes))


def lines_of(plan: Plan, out: Path, **base: float) -> dict[tuple[str, str, str, int], Line]:
    made_up(plan, out, base)
    return {line.paper[:4]: line for line in make_lines(plan, out)}


class TestScores:
    @pytest.fixture
    def lines(self, tmp_path: Path) -> dict[tuple[str, str, str, int], Line]:
        plan = plan_of("same_domain", "cpu", tasks=[SWINGUP, SPARSE], methods=["ctrlformer"])
        return lines_of(plan, tmp_path, cartpole_swingup=800.0, cartpole_swingup_sparse=200.0)

    def test_one_line_for_every_score_of_the_paper(self, lines: dict[tuple[str, str, str, int], Line]) -> None:
        printed = [
            score[:4]
            for score in paper_scores("same_domain")
            if score.method == "ctrlformer" and score.task in (SWINGUP, SPARSE)
        ]
        assert list(lines) == printed
        assert len(printed) == 7

    def test_ours_is_over_seeds_at_the_frames_run(self, lines: dict[tuple[str, str, str, int], Line]) -> None:
        ours = lines["ctrlformer", SWINGUP, "scratch", 100_000].ours
        assert ours is not None
        assert (ours.seeds, ours.mean, ours.std, ours.iqm, ours.frames) == (2, 801.5, 0.5, 801.5, (100_000, 100_000))
        transfer = lines["ctrlformer", SPARSE, "transfer", 100_000].ours
        retest = lines["ctrlformer", SWINGUP, "retest", 500_000].ours
        assert transfer is not None
        assert retest is not None
        assert (transfer.mean, retest.mean) == (301.5, 751.5)

    def test_a_smaller_budget_is_flagged(self, lines: dict[tuple[str, str, str, int], Line]) -> None:
        assert lines["ctrlformer", SWINGUP, "scratch", 100_000].flags == ()
        assert lines["ctrlformer", SWINGUP, "scratch", 500_000].flags == ("100,000 of the paper's 500,000 frames",)

    def test_public_scores_stand_beside(self, lines: dict[tuple[str, str, str, int], Line]) -> None:
        plan = plan_of("same_domain", "cpu", tasks=[SWINGUP, SPARSE], methods=["ctrlformer"])
        cells = export.cells(plan, list(lines.values()))
        at_100k = dict(zip(cells[0], cells[1], strict=True))
        assert at_100k["batch"] == "128"
        assert (at_100k["paper"], at_100k["best public"]) == ("759 ± 48", "777 ± 65 drq_planet")


def test_a_budget_is_read_off_the_curve(tmp_path: Path) -> None:
    plan = plan_of("same_domain", "paper", tasks=["reacher_easy"], methods=["ctrlformer"], seeds=1, frames=200_000)
    lines = lines_of(plan, tmp_path, reacher_easy=600.0)
    early = lines["ctrlformer", "reacher_easy", "scratch", 100_000]
    assert early.ours is not None
    assert (early.ours.mean, early.ours.frames, early.flags) == (300.5, (100_000, 100_000), ())


def test_runs_that_have_not_finished_do_not_count(tmp_path: Path) -> None:
    plan = plan_of("same_domain", "cpu", tasks=["reacher_easy"], methods=["ctrlformer"])
    made_up(plan, tmp_path, {"reacher_easy": 600.0})
    first, _ = plan.runs
    (tmp_path / RUNS / first / "checkpoints" / "last").unlink()
    for line in make_lines(plan, tmp_path):
        assert line.ours is not None
        assert (line.ours.seeds, line.ours.mean) == (1, 602.0)
    (tmp_path / RUNS / list(plan.runs)[1] / "checkpoints" / "last").unlink()
    lines = make_lines(plan, tmp_path)
    assert [line.ours for line in lines] == [None, None]
    assert "not run" in export.as_markdown(plan, lines)


def test_manipulation_is_a_substitution(tmp_path: Path) -> None:
    plan = plan_of("manipulation", "paper", methods=["drq"], seeds=1)
    names = {"manipulation/reach_site": 150.0, "manipulation/reach_duplo": 100.0}
    lines = lines_of(plan, tmp_path, **names)
    assert lines["drq", "reach_ball", "scratch", 500_000].flags == (
        "substitution: manipulation/reach_site for reach_ball",
    )
    assert (
        "manipulation/reach_duplo for reach_chess_piece"
        in lines["drq", "reach_chess_piece", "transfer", 100_000].flags[0]
    )


def test_a_sequence_tells_each_task_where_it_was_learnt(tmp_path: Path) -> None:
    plan = plan_of("sequence_of_four", "cpu", seeds=1)
    base = {"cartpole_balance": 900.0, "cartpole_balance_sparse": 800.0, SWINGUP: 700.0, SPARSE: 100.0}
    lines = lines_of(plan, tmp_path, **base)
    means = {key: line.ours.mean for key, line in lines.items() if line.ours}
    assert means["ctrlformer", SWINGUP, "sequential", 100_000] == 801.0
    assert means["ctrlformer", "cartpole_balance", "sequential", 100_000] == 901.0
    assert means["ctrlformer", SWINGUP, "together", 100_000] == 701.0
    assert len(means) == len(paper_scores("sequence_of_four")) == 24
    flagged = {key[1:] for key, line in lines.items() if any("every public evaluation" in flag for flag in line.flags)}
    sequential = {(task, "sequential", frames) for task in (SWINGUP, SPARSE) for frames in (100_000, 500_000)}
    assert flagged == sequential


def test_flags_where_the_paper_exceeds_public_curves() -> None:
    flagged = {score.mean: doubt(score) for score in paper_scores("sequence_of_four")}
    assert flagged[992] == flagged[988] == "paper above every public evaluation (883)"
    assert flagged[846] is None
    reacher = [doubt(score) for score in paper_scores("q_regularisation_ablation") if score.mean == 973]
    assert reacher == ["paper above every public mean (956)"]
    assert public_scores("reach_ball") == []


class TestEffects:
    @pytest.fixture
    def lines(self, tmp_path: Path) -> dict[tuple[str, str, str, int], Line]:
        plan = plan_of("effect_bars", "cpu", tasks=[SWINGUP, SPARSE])
        return lines_of(plan, tmp_path, cartpole_swingup=800.0, cartpole_swingup_sparse=200.0)

    def test_maintainability_and_transferability_of_ours(self, lines: dict[tuple[str, str, str, int], Line]) -> None:
        kept = lines["drq", SWINGUP, MAINTAINABILITY, 500_000].ours
        gain = lines["drq", SPARSE, GAIN, 100_000].ours
        percent = lines["drq", SPARSE, TRANSFERABILITY, 100_000].ours
        assert kept is not None
        assert gain is not None
        assert percent is not None
        assert kept.mean == pytest.approx(100 * 751.5 / 801.5)
        assert (gain.mean, percent.mean) == (100.0, pytest.approx(100 * 100 / 201.5))

    def test_and_of_the_papers_scores(self, lines: dict[tuple[str, str, str, int], Line]) -> None:
        assert lines["drq", SWINGUP, MAINTAINABILITY, 500_000].paper.mean == pytest.approx(100 * 373 / 854)
        assert lines["ctrlformer", SPARSE, GAIN, 100_000].paper.mean == 769
        assert lines["ctrlformer", SPARSE, TRANSFERABILITY, 100_000].paper.mean is None  # scratch scored 0

    def test_the_formulas_are_stated(self, tmp_path: Path, lines: dict[tuple[str, str, str, int], Line]) -> None:
        page = export.as_markdown(plan_of("effect_bars", "cpu"), list(lines.values()))
        assert "100 * retest / score before" in page
        assert "100 * (transfer - scratch) / scratch" in page


class TestFiles:
    def test_markdown_csv_and_json(self, tmp_path: Path) -> None:
        plan = plan_of("encoder_lr_curves", "cpu")
        made_up(plan, tmp_path, {SWINGUP: 800.0, SPARSE: 200.0})
        lines = make_lines(plan, tmp_path)
        page, table, data = export.write(plan, lines, tmp_path)
        assert "transfer.encoder_lr_scale 0.08" in page.read_text()
        rows = list(csv.DictReader(io.StringIO(table.read_text())))
        assert len(rows) == 6 * 3
        assert (rows[0]["mean"], rows[0]["mean_low"], rows[0]["paper_mean"]) == ("301.5", "301.0", "")
        found = json.loads(data.read_text())
        assert found["lines"][0]["iqm"] == 301.5
        assert {curve["method"] for curve in found["curves"]} == set(plan.methods)
        assert found["curves"][0]["scores"] == [150.5, 301.0]

    def test_markdown_when_piped_and_a_table_on_a_terminal(self, tmp_path: Path) -> None:
        plan = plan_of("contrastive_on_baselines", "cpu", seeds=1)
        made_up(plan, tmp_path, {"walker_stand": 900.0, "walker_walk": 400.0})
        lines = make_lines(plan, tmp_path)
        for terminal in (False, True):
            shown = io.StringIO()
            export.show(plan, lines, Console(file=shown, force_terminal=terminal, width=300))
            assert ("| drq |" in shown.getvalue()) != terminal
            assert "851" in shown.getvalue()
