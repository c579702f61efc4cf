"""Generate docs/results.md, and the tables in README.md and docs/performance.md, from the files under results/.

    python docs/generate_results.py     (or: make results)

docs/results.template.md is hand-written text with placeholders:

    <!-- table: KIND PATH... NAME=VALUE... -->      a table; the kinds are in docs/result_tables.py
    <!-- figure: FILE.png PATH... -->               learning curves of runs, drawn into docs/FILE.png
    {{ NAME ARGUMENT... }}                          one number; the names are in VALUES below

Other pages keep their text; what stands between `<!-- table: ... -->` and `<!-- end of table -->`, or
`<!-- value: ... -->` and `<!-- end of value -->`, is replaced. (A line must not begin with the latter: in Markdown a
comment at its start ends the paragraph.)
Paths are relative to the repository's root; a folder of run folders and patterns such as results/swingup-seed* work.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from result_runs import PublishedRun, ResultsError, read_json, read_one_run, read_runs
from result_tables import TABLES, Arguments, paper_at_100k

from ctrlformer.errors import CtrlFormerError
from ctrlformer.report.learning_curve import learning_curve

ROOT = Path(__file__).parents[1]
TEMPLATE, PAGE = "docs/results.template.md", "docs/results.md"
PAGES_WITH_TABLES = ("README.md", "docs/performance.md")
GENERATED = "<!-- Generated from results.template.md and results/ by `make results`: edit these instead. -->\n"

TABLE = re.compile(r"<!-- table: (?P<words>[^>]*?)\s*-->")
FIGURE = re.compile(r"<!-- figure: (?P<words>[^>]*?)\s*-->")
VALUE = re.compile(r"\{\{ (?P<words>.*?) \}\}")
TABLE_BLOCK = re.compile(
    r"(?P<opening><!-- table: (?P<words>[^>]*?)\s*-->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)
VALUE_BLOCK = re.compile(r"(?P<opening><!-- value: (?P<words>[^>]*?)\s*-->).*?(?P<end><!-- end of value -->)")
LEFT_OVER = re.compile(r"<!-- (table|figure)\b.*|\{\{.*|.*\}\}")

Value = Callable[[Path, list[str]], str]


def filled_template(root: Path) -> str:
    """Return the text of docs/results.md."""
    text = GENERATED + (root / TEMPLATE).read_text(encoding="utf-8")
    text = _replaced(text, TABLE, lambda match: _table(root, match["words"]))
    text = _replaced(text, FIGURE, lambda match: _figure_link(root, match["words"]))
    text = _replaced(text, VALUE, lambda match: _value(root, match["words"]))
    if left := LEFT_OVER.search(text):
        raise ResultsError(f"not a placeholder: {left[0]}")
    return text


def updated_page(root: Path, page: str) -> str:
    """Return the page with new tables and values between their markers."""
    text = (root / page).read_text(encoding="utf-8")
    for name, block, fill in (("table", TABLE_BLOCK, _table_lines), ("value", VALUE_BLOCK, _value)):
        if text.count(f"<!-- {name}: ") != len(block.findall(text)):
            raise ResultsError(f"{page}: every <!-- {name}: ... --> needs its <!-- end of {name} -->")
        text = _replaced(text, block, _between_markers(root, fill))
    return text


def generated_pages(root: Path) -> dict[str, str]:
    """Return the text of every generated page, by its path."""
    return {PAGE: filled_template(root)} | {page: updated_page(root, page) for page in PAGES_WITH_TABLES}


def drawn_figures(root: Path) -> dict[str, bytes]:
    """Return the PNG files that the template names, by their path."""
    figures = {}
    for match in FIGURE.finditer((root / TEMPLATE).read_text(encoding="utf-8")):
        name, *paths = shlex.split(match["words"])
        rows = [
            row | {"task": f"{row['task']}, {run.method}, seed {run.seed}"}
            for run in read_runs(root, paths)
            for row in run.rows
        ]
        figures[f"docs/{name}"] = learning_curve("learning curves", rows)
    return figures


def _table(root: Path, words: str) -> str:
    kind, *rest = shlex.split(words) or [""]
    if kind not in TABLES:
        raise ResultsError(f"unknown kind of table {kind!r}: choose from {', '.join(TABLES)}")
    return TABLES[kind](root, Arguments.parse(rest))


def _table_lines(root: Path, words: str) -> str:
    return f"{_table(root, words)}\n"


def _between_markers(root: Path, fill: Callable[[Path, str], str]) -> Callable[[re.Match[str]], str]:
    return lambda match: f"{match['opening']}{fill(root, match['words'])}{match['end']}"


def _figure_link(root: Path, words: str) -> str:
    name, *paths = shlex.split(words)
    read_runs(root, paths)
    return f"![Learning curves]({name})"


def _value(root: Path, words: str) -> str:
    name, *rest = shlex.split(words)
    if name not in VALUES:
        raise ResultsError(f"unknown value {name!r}: choose from {', '.join(VALUES)}")
    return VALUES[name](root, rest)


def _of_task(score: Callable[[PublishedRun, str], float]) -> Value:
    """Make a value of the arguments RUN TASK."""

    def value(root: Path, words: list[str]) -> str:
        path, task = words
        return f"{score(read_one_run(root, path), task):.0f}"

    return value


def _score(root: Path, words: list[str]) -> str:
    path, task, frames = words
    return f"{read_one_run(root, path).score(task, int(frames)):.0f}"


def _minutes(root: Path, words: list[str]) -> str:
    (path,) = words
    return f"{read_one_run(root, path).minutes:.1f}"


def _json(root: Path, words: list[str]) -> str:
    path, *keys = words
    value: object = read_json(root / path)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise ResultsError(f"{path} has no {' '.join(keys)}")
        value = value[key]
    return f"{value:,}" if isinstance(value, int) else str(value)


def _paper(root: Path, words: list[str]) -> str:
    (task,) = words
    return paper_at_100k(task)


VALUES: Mapping[str, Value] = {
    "final": _of_task(PublishedRun.final),  # RUN TASK: the score at the end of the task's own stage
    "retest": _of_task(PublishedRun.retest),  # RUN TASK: the score of its last retest
    "score": _score,  # RUN TASK FRAMES
    "minutes": _minutes,  # RUN: wall-clock minutes of the whole run
    "json": _json,  # FILE KEY...: a number or word of a JSON file
    "paper": _paper,  # TASK: the paper's CtrlFormer from scratch at 100k frames
}


def _replaced(text: str, pattern: re.Pattern[str], fill: Callable[[re.Match[str]], str]) -> str:
    """Replace every match; an error names the placeholder."""

    def one(match: re.Match[str]) -> str:
        try:
            return fill(match)
        except (ResultsError, CtrlFormerError, ValueError, KeyError) as error:
            reason = f"missing {error}" if isinstance(error, KeyError) else error
            raise ResultsError(f"cannot fill '{' '.join(match['words'].split())}': {reason}") from error

    return pattern.sub(one, text)


def main(root: Path = ROOT) -> int:
    """Write all pages and figures; return the exit code."""
    try:
        pages, figures = generated_pages(root), drawn_figures(root)
    except ResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, text in pages.items():
        (root / path).write_text(text, encoding="utf-8")
    for path, png in figures.items():
        (root / path).write_bytes(png)
    print("\n".join([*pages, *figures]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
