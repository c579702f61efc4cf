"""The page as text: whole, by itself, and safe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_folders import PAIR, config, metrics, report_run, row, scratch, write

from ctrlformer.cli.main import main
from ctrlformer.report.page import render, write_report

HOSTILE = "<script>alert(1)</script>\"'&</style>"


def embedded(page: str) -> dict[str, list[dict[str, object]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, list[dict[str, object]]] = json.loads(found[1])
    return data


def test_a_page_stands_by_itself(tmp_path: Path) -> None:
    run = report_run(tmp_path / "pair", config("a", "b"), PAIR, metrics(0, [10, 20], q=1.0))
    page = render([run])
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r'(src|href)="(?!#)', page)
    for text in ("after b", "800", "600", "75 %", "tiny", "performance <b>0.55</b>"):
        assert text in page
    assert [chart["task"] for chart in embedded(page)["curves"]] == ["a", "b"]


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    page = render([report_run(tmp_path / "new", config("a"))])
    assert "just begun" in page
    assert embedded(page) == {"curves": [], "wholes": [], "figures": []}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evals = [one | {"task": HOSTILE if one["task"] == "b" else one["task"]} for one in PAIR]
    evals.append(row(1, HOSTILE, "probe", 8, 1.0) | {"source": HOSTILE, "chosen": HOSTILE, "heads": True})
    folder = write(tmp_path / "<img src=x onerror=alert(2)>", config("a"), evals)
    (folder / "config.json").write_text(json.dumps({"preset": HOSTILE, "seed": 1}))
    (folder / "environment.json").write_text(json.dumps({"command": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}}))
    out = write_report([folder], tmp_path / "page.html")
    page = out.read_text()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 2
    assert page.count("</style>") == 1
    assert "starts from" in page
    assert embedded(page)["curves"][1]["task"] == HOSTILE


def test_two_hundred_runs_make_a_page_of_bearable_size(tmp_path: Path) -> None:
    logged = metrics(0, range(100, 100_100, 100), q=1.2345, critic_loss=2.3456, temperature=0.1234)
    evals = [row(0, "a", "learn", frames, frames / 100) for frames in range(0, 100_001, 10_000)]
    runs = [
        report_run(tmp_path / f"{seed}", config("a", seed=seed), evals, logged if seed < 3 else logged[::5])
        for seed in range(200)
    ]
    assert len(render(runs)) < 15e6


def test_the_command_writes_the_page_into_a_single_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", config("a"), scratch("a", (0, 1.0), (10, 5.0)))
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    other = tmp_path / "both.html"
    assert main(["report", str(folder), str(folder), "--out", str(other)]) == 0
    assert other.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("words", [["nowhere"], []])
def test_the_command_refuses_what_is_no_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", config("a"))
    assert main(["report", str(folder), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "page.html" in capsys.readouterr().err


def test_half_a_character_in_a_name_does_not_end_the_report(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", config("a"), PAIR[:3])
    (folder / "environment.json").write_text(json.dumps({"command": "half \ud800 of a letter"}))
    assert "half ? of a letter" in write_report([folder], tmp_path / "page.html").read_text()


def test_numbers_too_large_to_draw_are_left_out(tmp_path: Path) -> None:
    logged = metrics(0, [10, 20, 30], critic_loss=1.0)
    for number, value in enumerate((10**400, 1.7976e308, 1e-320)):
        rows = [one | {"seconds": value, "q": value, "minutes": value} for one in logged]
        assert "critic_loss" in render([report_run(tmp_path / f"{number}", config("a"), PAIR[:3], rows)])
