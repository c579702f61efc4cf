"""Pages in a real browser: nothing fails, everything answers, nothing overlaps. `make test` installs Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsers import browser, opened
from PIL import Image
from report_folders import PAIR, Row, config, metrics, row, scratch, write
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ctrlformer.report.page import write_report

__all__ = ["browser"]  # a fixture is used by its name alone

HOSTILE = '<img src=x onerror="window.broken = 1">'


def sequence(scale: float = 1.0) -> list[Row]:
    """Four stages with all their retests."""
    tasks, rows = ["cartpole_balance", "cartpole_balance_sparse", "cartpole_swingup", "cartpole_swingup_sparse"], []
    for stage, task in enumerate(tasks):
        points = [(0, 50.0), (10_000, 300.0 * scale), (20_000, 700.0 * scale)]
        rows += [one | {"stage": stage} for one in scratch(task, *points)]
        rows += [row(stage, old, "retest", 20_000, 600.0 * scale) for old in tasks[:stage]]
    return rows


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("pages")
    tasks = tuple(dict.fromkeys(one["task"] for one in sequence()))
    logged = metrics(0, range(100, 5000, 100), q=1.5, critic_loss=2.0, temperature=0.1)
    folders = {
        "one": [write(top / "swingup", config("a"), scratch("a", (0, 1.0), (10, 400.0), (20, 800.0)), logged)],
        "four stages": [write(top / "sequence", config(*tasks), sequence(), logged)],
        "many seeds": [
            write(
                top / f"s{seed}", config("a", seed=seed), scratch("a", (0, 1.0), (50, 9.0 * seed), (100, 90.0 * seed))
            )
            for seed in range(1, 7)
        ]
        + [write(top / f"p{seed}", config("a", "b", seed=seed), PAIR, logged) for seed in range(1, 4)]
        + [write(top / "b", config("b"), scratch("b", (0, 1.0), (100, 30.0)))],
        "explained": [explained(top / "looked")],
        "experiment": [experiment(top / "experiment")],
        "unfinished": [write(top / "begun", config("a", "b"), PAIR[:4], logged[:3])],
        "just begun": [write(top / "empty", config("a"))],
        "hostile": [write(top / HOSTILE.replace("/", ""), config("a"), [one | {"task": HOSTILE} for one in PAIR[:3]])],
    }
    return {name: write_report(runs, top / f"{name}.html") for name, runs in folders.items()}


def explained(folder: Path) -> Path:
    """A run with a picture of two rows, then and now, and a film that is none."""
    write(folder, config("a", "b"), PAIR)
    (folder / "explain").mkdir()
    Image.new("RGB", (1038, 342), "navy").save(folder / "explain" / "a.png")
    task = {"task": "a", "method": "attention rollout", "attention": "a.png", "video": None}
    change = {"tasks": ["b"], "similarity": 0.9, "file": "a.png"}
    task |= {"share_on_moving": {"trained": 0.2, "untrained": 0.1, "pixels": 0.02}, "after_later_stages": [change]}
    alike = {"what": "learned policy tokens", "chord": "a.png", "heat": "a.png"}
    (folder / "explain" / "explain.json").write_text(json.dumps({"tasks": [task], "similarity": [alike]}))
    return folder


def experiment(out: Path) -> Path:
    """A run that belongs to an experiment, whose table is far wider than a phone."""
    headings = ["method", "task", "protocol", *(f"figure {number}" for number in range(9)), "flags"]
    line = [
        "drq",
        "cartpole_swingup_sparse",
        "transfer from cartpole_swingup",
        *["279 ± 182"] * 9,
        "16,000 frames " * 9,
    ]
    table = {"title": "same_domain", "runs": ["one"], "table": [headings, *[line] * 4], "notes": ["one", "two"]}
    run = write(out / "runs" / "one", config("a"), scratch("a", (0, 1.0), (10, 400.0)))
    (out / "same_domain-cpu.json").write_text(json.dumps(table))
    return run


NAMES = ["one", "four stages", "many seeds", "explained", "experiment", "unfinished", "just begun", "hostile"]


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_fails_and_nothing_overlaps(browser: Chrome, pages: dict[str, Path], name: str, width: int) -> None:
    browser.get_log("browser")
    opened(browser, pages[name], width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.broken") is None
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), (
        "scrolls sideways"
    )
    assert browser.execute_script(OVERLAPS) == []


# Pairs of texts on the page, and of labels within each chart, whose boxes share more than a pixel's width.
OVERLAPS = """
const shown = (e) => e.getClientRects().length && getComputedStyle(e).visibility !== "hidden";
const texts = [...document.querySelectorAll("h1, h2, h3, nav a, figcaption, .note, button, summary, td, th, dt")];
const sets = [texts, ...[...document.querySelectorAll(".chart svg")].map((svg) => [...svg.querySelectorAll("text")])];
const found = [];
for (const set of sets) {
  const boxes = set.filter(shown).map((e) => [e, e.getBoundingClientRect()]);
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    if (a.contains(b) || b.contains(a)) return;
    const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (across > 1 && down > 2) found.push([a.textContent.trim(), b.textContent.trim()]);
  }));
}
return found.slice(0, 5);
"""


def charts(browser: Chrome, holder: str = "curve-charts") -> list[Any]:
    return browser.find_elements(By.CSS_SELECTOR, f"#{holder} .chart svg")


@pytest.mark.parametrize("width", [390, 1440])
def test_charts_are_drawn_for_their_place(browser: Chrome, pages: dict[str, Path], width: int) -> None:
    """Also the first, which has all the room until the second comes."""
    opened(browser, pages["four stages"], width)
    for chart in charts(browser):
        drawn, room = browser.execute_script(
            "return [arguments[0].viewBox.baseVal.width, arguments[0].clientWidth]", chart
        )
        assert abs(drawn - room) <= 2, (drawn, room)


def test_pointing_and_arrow_keys_read_values(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["one"])
    tip, chart = browser.find_element(By.ID, "tip"), charts(browser)[0]
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element_with_offset(chart, chart.size["width"] // 2 - 20, 0).perform()
    assert tip.is_displayed()
    assert "20 frames" in tip.text
    assert "800" in tip.text
    chart.send_keys(Keys.ARROW_LEFT)
    assert "10 frames" in tip.text
    assert "400" in tip.text
    assert "800 at 20 frames" in chart.get_attribute("aria-label")


def test_a_method_can_be_hidden_and_shown(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["many seeds"])
    before = [len(chart.find_elements(By.TAG_NAME, "path")) for chart in charts(browser)]
    button = browser.find_element(By.XPATH, "//div[@id='curve-legend']/button[contains(., 'from scratch')]")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [len(chart.find_elements(By.TAG_NAME, "path")) for chart in charts(browser)] != before
    button.send_keys(Keys.ENTER)
    assert [len(chart.find_elements(By.TAG_NAME, "path")) for chart in charts(browser)] == before


def test_a_whole_run_can_be_chosen(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["many seeds"])
    choice = browser.find_element(By.ID, "whole-choice")
    names = [option.text for option in choice.find_elements(By.TAG_NAME, "option")]
    assert names == ["p1", "p2", "p3"]
    choice.send_keys("p3")
    assert browser.find_element(By.CSS_SELECTOR, "#whole-chart figcaption").text == "p3"


def test_the_slider_goes_from_then_to_now(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["explained"])
    slider = browser.find_element(By.CSS_SELECTOR, ".slider input")
    halves = browser.find_element(By.CSS_SELECTOR, ".halves")
    slider.send_keys(Keys.END)
    assert "--cut: 0%" in halves.get_attribute("style")
    slider.send_keys(Keys.HOME)
    assert "--cut: 100%" in halves.get_attribute("style")
    for picture in browser.find_elements(By.CSS_SELECTOR, ".looks img"):
        assert picture.get_attribute("alt")


def test_the_retest_matrix_shows_every_stage(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["four stages"])
    lines = browser.find_elements(By.CSS_SELECTOR, "#retests tbody tr")
    cells = [[cell.text for cell in line.find_elements(By.TAG_NAME, "td")][:4] for line in lines]
    assert cells[0] == ["700", "600", "600", "600"]
    assert cells[3] == ["", "", "", "700"]


def test_two_hundred_runs_open_at_once(browser: Chrome, tmp_path: Path) -> None:
    logged = metrics(0, range(100, 40_000, 100), q=1.5, critic_loss=2.0, temperature=0.1)
    evals = scratch("a", *((frames, frames / 100) for frames in range(0, 100_001, 10_000)))
    folders = [write(tmp_path / f"{seed}", config("a", seed=seed), evals, logged) for seed in range(200)]
    page = write_report(folders, tmp_path / "page.html")
    assert page.stat().st_size < 15e6
    opened(browser, page)
    spent = browser.execute_script("const t = performance.timing; return t.loadEventEnd - t.navigationStart")
    print(f"opened in {spent} ms, {page.stat().st_size / 1e6:.1f} MB")  # timing decides nothing; docs quote it
    assert len(charts(browser, "figure-charts")) == 4
