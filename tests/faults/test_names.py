"""Reports of runs whose names are made to be taken for something else: a browser shows them as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browsers import browser, opened
from report_folders import PAIR, config, metrics, write
from selenium.webdriver import Chrome
from tally import HowMany, Tally

from ctrlformer.report.page import write_report

__all__ = ["browser"]  # a fixture is used by its name alone

NAMES = [
    '<img src=x onerror="window.broken = 1">',
    "</script><script>window.broken = 1</script>",
    "<script>window.broken = 1</script>",
    "<!--<script>",
    "--><svg onload=window.broken=1>",
    "]]><script>window.broken = 1</script>",
    '" onmouseover="window.broken = 1" x="',
    "' autofocus onfocus='window.broken = 1",
    "javascript:window.broken=1",
    "<a href=javascript:window.broken=1>run</a>",
    "<iframe srcdoc='<script>parent.broken = 1</script>'>",
    "</style><style>* { display: none !important }",
    "</title><script>window.broken = 1</script>",
    "{{ 7 * 7 }} {% for x in runs %}",
    "${window.broken = 1} `${1}`",
    "\\u003cscript\\u003ewindow.broken = 1",
    "&lt;script&gt; &amp; &#60;b&#62;",
    "__proto__",
    "constructor",
    "line\u2028separator",
    "right\u202eto left\u202c",
    "0\u200bwidth",
    "x" * 200,
    "日本語 ünï 🤖",
]
# What would be there if a name had been taken for markup.
FOREIGN = """
return [...document.querySelectorAll("iframe, object, embed, base, a[href^='javascript'], [onerror], [onload],"
  + " [onfocus], [onmouseover], img[src='x']")].map((e) => e.outerHTML.slice(0, 100));
"""


@pytest.mark.fault("names")
def test_names_are_shown_as_text(browser: Chrome, tally: Tally, how_many: HowMany, tmp_path: Path) -> None:
    plain = write_report([named(tmp_path / "0", "plain")], tmp_path / "plain.html")
    scripts, styles = counts(opened(browser, plain))
    for number, name in enumerate(NAMES[: how_many(4, len(NAMES))], start=1):
        with tally.case(name):
            folder = named(tmp_path / f"{number}", name)
            page = write_report([folder], tmp_path / f"{number}.html")
            browser.get_log("browser")
            opened(browser, page)
            assert browser.get_log("browser") == []
            assert browser.execute_script("return window.broken") is None
            assert counts(browser) == (scripts, styles)
            assert browser.execute_script(FOREIGN) == []
            shown = browser.execute_script("return document.querySelector('main').textContent")
            assert shown.count(name) >= 5  # as run, task, method, setting and in charts
            assert browser.execute_script("return document.title").startswith(folder.name)


def named(top: Path, name: str) -> Path:
    """A run with the name wherever a report shows one."""
    folder = top / name.replace("/", "\u2215")[:80]
    tasks = {"a": name if name.isprintable() else "a", "b": "b"}
    evals = [row | {"task": tasks[row["task"]]} for row in PAIR]
    drift = {f"drift/{name}": 0.5, "critic_loss": 1.0}
    write(folder, config("a", "b"), evals, metrics(0, [10, 20, 30], **drift))
    settings = json.loads((folder / "config.json").read_text()) | {"preset": name}
    (folder / "config.json").write_text(json.dumps(settings))
    facts = {"command": name, "gl": name, name: name, "versions": {name: name}}
    (folder / "environment.json").write_text(json.dumps(facts))
    return folder


def counts(browser: Chrome) -> tuple[int, int]:
    """Scripts and styles of the page."""
    return (
        browser.execute_script("return document.scripts.length"),
        browser.execute_script("return document.querySelectorAll('style').length"),
    )
