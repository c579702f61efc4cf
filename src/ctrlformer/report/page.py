"""The page itself: one HTML file with its style, its script and everything they show inside."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ctrlformer.analysis.metrics import SUITE_MAXIMUM
from ctrlformer.errors import RunError
from ctrlformer.report import charts, retests
from ctrlformer.report.paper_tables import ExperimentTable, read_tables
from ctrlformer.report.report_run import ReportRun, read_runs
from ctrlformer.storage.files import JSON, reason, write_atomic

REPORT = "report.html"


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Read the runs and write the page; answers with its path."""
    page = render(read_runs(folders), read_tables(folders))
    try:
        write_atomic(out, page.encode(errors="replace"))  # a name may hold half a character
    except OSError as error:
        raise RunError(f"cannot write the report {out}: {reason(error)}") from error
    return out


def render(runs: Sequence[ReportRun], experiments: Sequence[ExperimentTable] = ()) -> str:
    """HTML of everything that is known of the runs. Names from outside are escaped, in the page and in its data."""
    return _template().render(
        title=_title(runs),
        runs=runs,
        matrices=retests.retest_matrices(runs),
        probes=retests.probe_matrices(runs),
        effects=retests.effects(runs),
        experiments=experiments,
        looked=[one for run in runs for one in run.explained.looked],
        alike=[one for run in runs for one in run.explained.alike],
        maximum=SUITE_MAXIMUM,
        data=_embedded(charts.as_json(runs)),
        style=Markup(_file("page.css")),
        script=Markup(_file("page.js")),
    )


def _title(runs: Sequence[ReportRun]) -> str:
    if len(runs) == 1:
        return runs[0].name
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    return f"{len(runs)} runs: {', '.join(tasks[:3])}{' and more' if len(tasks) > 3 else ''}"


def _embedded(value: JSON) -> Markup:
    """JSON that no name in it can end, or turn into markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_file("page.html.jinja"))


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
