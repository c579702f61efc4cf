"""docs/results.md and the tables of other pages are what docs/generate_results.py makes of results/."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import result_tables  # noqa: E402
from generate_results import PAGE, PAGES_WITH_TABLES, TEMPLATE, drawn_figures, generated_pages, main  # noqa: E402
from result_runs import ResultsError  # noqa: E402
from result_tables import TABLES, Arguments  # noqa: E402

SWINGUP, BALANCE = "cartpole_swingup", "cartpole_balance"
RUN = "results/swingup-seed1"
Row = dict[str, Any]


def row(stage: int, task: str, kind: str, frames: int, mean: float) -> Row:
    episodes = 3 if kind == "learn" else 10
    start = {"stage": stage, "task": task, "kind": kind, "frames": frames, "steps": frames // 8}
    return start | {"returns": [mean] * episodes, "mean": mean, "std": 2.0, "minutes": (stage + 1) * frames / 1000}


def curve(*scores: float, task: str = SWINGUP, stage: int = 0) -> list[Row]:
    """Return evaluations 8,000 frames apart, the last of them final."""
    kinds = ["learn"] * (len(scores) - 1) + ["final"]
    return [row(stage, task, kind, 8000 * n, score) for n, (kind, score) in enumerate(zip(kinds, scores, strict=True))]


def publish(
    root: Path, name: str, seed: int, rows: list[Row], batch: int = 256, transfer: Mapping[str, Any] | None = None
) -> None:
    """Write a run folder; with `transfer` its second task was added with these settings."""
    tasks = list(dict.fromkeys(one["task"] for one in rows))
    config: Row = {"tasks": tasks[:1], "preset": "compact", "seed": seed, "encoder": {"kind": "ctrlformer"}}
    config |= {"agent": {"batch_size": batch}, "training": {"frames": 16000}}
    if transfer:
        config["added"] = [{"tasks": tasks[1:], "frames": 8000, "transfer": transfer}]
    folder = root / "results" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(json.dumps({"commit": f"{seed}234567890"}))
    (folder / "evals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a root with one run and pages of its own: a figure, a table and a number of that run."""
    publish(tmp_path, "swingup-seed1", 1, curve(100.0, 400.0, 800.0))
    (tmp_path / "docs").mkdir()
    (tmp_path / TEMPLATE).write_text(
        f"<!-- figure: curves.png {RUN} -->\n\n<!-- table: learning_curves\n{RUN} last=2 -->\n\n"
        f"It ends at {{{{ final {RUN} {SWINGUP} }}}}.\n"
    )
    for page in PAGES_WITH_TABLES:
        (tmp_path / page).write_text(f"Text.\n\n<!-- table: final_scores {RUN} -->\n<!-- end of table -->\n\nMore.\n")
    return tmp_path


def table(root: Path, kind: str, *words: str) -> tuple[list[list[str]], str]:
    """Return the cells of a table without its headings, and the sentence below it."""
    text = TABLES[kind](root, Arguments.parse(words))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]], text.splitlines()[-1]


def test_committed_pages_are_the_generated_ones() -> None:
    changed = [page for page, text in generated_pages(ROOT).items() if (ROOT / page).read_text() != text]
    assert not changed, f"{', '.join(changed)} differ from results/: run make results"


def test_committed_figures_exist() -> None:
    assert all((ROOT / path).is_file() and png.startswith(b"\x89PNG") for path, png in drawn_figures(ROOT).items())


def test_generator_needs_no_torch() -> None:
    code = "import sys; sys.path.insert(0, 'docs'); import generate_results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_examples_in_docstrings_hold() -> None:
    found = doctest.testmod(result_tables)
    assert found.attempted > 0
    assert found.failed == 0


def test_a_changed_result_changes_every_page(site: Path) -> None:
    before = generated_pages(site)
    rows = curve(100.0, 400.0, 123.4)
    (site / RUN / "evals.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    after = generated_pages(site)
    assert "It ends at 800." in before[PAGE]
    assert "It ends at 123." in after[PAGE]
    for page in (PAGE, *PAGES_WITH_TABLES):
        assert "| 123 " not in before[page]
        assert "| 123 " in after[page]


def test_only_what_is_between_the_markers_changes(site: Path) -> None:
    page = generated_pages(site)["README.md"]
    assert page.startswith(f"Text.\n\n<!-- table: final_scores {RUN} -->\n| task | preset | seed | frames |")
    assert page.endswith("<!-- end of table -->\n\nMore.\n")
    (site / "README.md").write_text(page)
    assert generated_pages(site)["README.md"] == page


def test_main_writes_pages_and_figures(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(site) == 0
    assert (site / PAGE).read_text() == generated_pages(site)[PAGE]
    assert (site / "docs/curves.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.split() == [PAGE, *PAGES_WITH_TABLES, "docs/curves.png"]


@pytest.mark.parametrize(
    ("placeholder", "message"),
    [
        ("<!-- table: learning_curves results/gone -->", "no run folder at .*results/gone"),
        ("<!-- table: learning_curves results/gone-seed* -->", r"no run folder matches results/gone-seed\*"),
        ("<!-- table: learning_curves -->", "names no run folder"),
        (f"<!-- table: learning_curves {RUN} task=walker_walk -->", "did not learn walker_walk"),
        ("<!-- table: probe results/gone.json -->", "no file .*results/gone.json"),
        (f"<!-- table: drift {RUN} -->", "no file .*drift.json"),
        (f"<!-- table: sequences {RUN} -->", "missing 'protect'"),
        ("<!-- table: pie results/demo -->", "unknown kind of table 'pie'"),
        ("<!-- figure: curves.png results/gone -->", "no run folder at .*results/gone"),
        (f"{{{{ final results/gone {SWINGUP} }}}}", "no run folder at .*results/gone"),
        (f"{{{{ final {RUN} walker_walk }}}}", "no final evaluation of walker_walk"),
        (f"{{{{ score {RUN} {SWINGUP} 7 }}}}", f"no evaluation of {SWINGUP} at 7 frames"),
        (f"{{{{ json {RUN}/config.json agent colour }}}}", "has no agent colour"),
        ("{{ best results/demo }}", "unknown value 'best'"),
        ("{{final}}", "not a placeholder"),
    ],
)
def test_a_placeholder_that_cannot_be_filled_is_one_clear_error(
    site: Path, capsys: pytest.CaptureFixture[str], placeholder: str, message: str
) -> None:
    (site / TEMPLATE).write_text(f"Text.\n\n{placeholder}\n")
    with pytest.raises(ResultsError, match=message) as caught:
        generated_pages(site)
    assert main(site) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"
    assert not (site / PAGE).exists()


def test_a_table_without_its_end_marker_is_refused(site: Path) -> None:
    (site / "README.md").write_text(f"<!-- table: final_scores {RUN} -->\n")
    with pytest.raises(ResultsError, match=r"README\.md: every .* needs its <!-- end of table -->"):
        generated_pages(site)


def test_a_value_between_markers_is_replaced(site: Path) -> None:
    marked = f"It ends at <!-- value: final {RUN} {SWINGUP} -->{{}}<!-- end of value -->, and\n"
    (site / "README.md").write_text(marked.format(5))
    assert generated_pages(site)["README.md"] == marked.format(800)


def test_learning_curves_have_every_evaluation_and_the_protocol(site: Path) -> None:
    publish(site, "swingup-seed2", 2, curve(90.0, 300.0))
    rows, below = table(site, "learning_curves", "results/swingup-seed*", "last=2")
    assert rows[0] == ["`swingup-seed1`", "1", "100", "400", "800", "600", "16.0"]
    assert rows[1] == ["`swingup-seed2`", "2", "90", "300", "", "195", "8.0"]
    assert below == (
        "cartpole_swingup: preset compact_vit; seeds 1, 2; budget in frames: 16,000; action repeat: 8;"
        " 3 episodes per evaluation, 10 at the end of a stage; commits 1234567, 2234567."
    )
    timed, _ = table(site, "learning_curves", RUN, "minutes=each")
    assert timed == [["`swingup-seed1`", "1", "100 (0.0)", "400 (8.0)", "800 (16.0)"]]


def test_sequences_and_transfer_show_the_new_task_beside_the_retest(site: Path) -> None:
    settings = {"protect": "rehearse", "encoder_lr_scale": 0.05, "heads": "copy"}
    rows = [*curve(100.0, 800.0), *curve(50.0, 300.0, task=BALANCE, stage=1), row(1, SWINGUP, "retest", 8000, 600.0)]
    publish(site, "pair-seed1", 1, rows, transfer=settings)
    publish(site, "scratch-seed1", 1, curve(5.0, 20.0, task=BALANCE))
    cells, below = table(site, "sequences", "results/pair-seed1")
    assert cells == [["`pair-seed1`", "1", "rehearse", "0.05", "800 → 600", "300"]]
    assert "16,000 of cartpole_swingup, 8,000 of cartpole_balance" in below
    cells, _ = table(site, "transfer", "results/pair-seed1", "results/scratch-seed1")
    assert cells == [
        ["`pair-seed1`", "1", "copy", "0.05", "50", "300", "800", "600", "75.0%"],
        ["`scratch-seed1`", "1", "from scratch", "", "5", "20", "", "", ""],
    ]


def test_areas_are_over_the_frames_that_all_seeds_have(site: Path) -> None:
    publish(site, "swingup-seed2", 2, curve(100.0, 600.0))
    rows, _ = table(site, "areas", "results/swingup-seed*")
    assert rows == [["`swingup`", "compact_vit", "1, 2", "8k", "0.300", "0.250 to 0.350", "500"]]


def test_the_ten_tasks_stand_beside_the_paper_and_the_best_public_score(site: Path) -> None:
    publish(site, "swingup-seed2", 2, curve(100.0, 400.0, 700.0))
    rows, _ = table(site, "against_public", "results")
    found = {cells[0]: cells[1:] for cells in rows}
    assert len(found) == 10
    assert found[SWINGUP] == ["750", "700 to 800", "1, 2", "16,000", "759 ± 48", "816 (playvirtual)"]
    assert found["walker_walk"] == ["not run", "", "", "", "593 ± 52", "643 (mlr)"]


@pytest.mark.parametrize("kind", ["areas", "against_public"])
def test_runs_of_different_settings_are_not_pooled_as_seeds(site: Path, kind: str) -> None:
    publish(site, "swingup-seed2", 2, curve(100.0, 400.0), batch=128)
    with pytest.raises(ResultsError, match=r"not seeds of one setting: they differ in agent\.batch_size"):
        table(site, kind, "results")


def test_a_search_pools_seeds_of_one_setting_and_names_what_differs(tmp_path: Path) -> None:
    def trial(seed: int, tau: float, score: float) -> str:
        settings = {"agent.critic_tau": tau, "agent.discount": 0.98}
        return json.dumps({"task": SWINGUP, "seed": seed, "settings": settings, "curve": [[5000, score]]})

    (tmp_path / "trials.jsonl").write_text("\n".join([trial(1, 0.01, 100), trial(2, 0.01, 300), trial(1, 0.05, 500)]))
    cells, rest = table(tmp_path, "search", "trials.jsonl")
    assert [line[1:] for line in cells] == [
        ["agent.critic_tau 0.01", "1, 2", "5k: 200 ± 100"],
        ["agent.critic_tau 0.05", "1", "5k: 500"],
    ]
    assert "agent.discount 0.98" in rest
    with pytest.raises(ResultsError, match="no file"):
        table(tmp_path, "search", "missing.jsonl")


def test_measurements_show_chosen_fields_of_every_record(tmp_path: Path) -> None:
    lines = [{"reads": "cells", "unseen_r2": 0.48, "seed": 0}, {"reads": "positions", "r2": [0.1, 0.2]}]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, lines)))
    cells, _ = table(tmp_path, "measurements", "records.jsonl", "columns=reads,unseen_r2,r2")
    assert cells == [["cells", "0.48", ""], ["positions", "", "0.1, 0.2"]]
