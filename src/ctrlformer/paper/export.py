"""An experiment's table as people and programs want it: on the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ctrlformer.analysis.formatting import Cells, as_table, frames_text, interval_text, short
from ctrlformer.analysis.metrics import markdown
from ctrlformer.paper.experiments import MethodSettings
from ctrlformer.paper.plan import Plan
from ctrlformer.paper.references import PUBLIC_FRAMES, public_scores
from ctrlformer.paper.table import FORMULAS, RETESTED, TRANSFER, Line, Results
from ctrlformer.storage.files import JSON, to_json, write_atomic

PAPER_BATCH = 512
HEADINGS = ["method", "batch", "task", "protocol", "frames", "ours", "95 % of the mean", "IQM", "95 % of the IQM"]
HEADINGS += ["seeds", "frames run", "paper", "best public", "flags"]


def title(plan: Plan) -> str:
    """What the table is of."""
    return f"{plan.choice.experiment.name}: {plan.choice.experiment.shows}"


def cells(plan: Plan, lines: Sequence[Line]) -> Cells:
    """The table as text, headings first."""
    return [HEADINGS, *(_cells(plan, line) for line in lines)]


def _cells(plan: Plan, line: Line) -> list[str]:
    paper, ours = line.paper, line.ours
    mine = ["not run", "", "", "", "", ""]
    if ours:
        mine = [
            _mean(ours.mean, ours.std if ours.seeds > 1 else None),
            interval_text(ours.mean_interval),
            short(ours.iqm),
            interval_text(ours.iqm_interval),
            str(ours.seeds),
            frames_text(ours.frames),
        ]
    theirs = "" if paper.mean is None else _mean(paper.mean, paper.std)
    what = _protocol(paper.protocol, paper.source)
    return [
        paper.method,
        str(plan.batch_size(paper.method)),
        paper.task,
        what,
        f"{paper.frames:,}",
        *mine,
        theirs,
        _best_public(line),
        "; ".join(line.flags),
    ]


def _protocol(protocol: str, source: str | None) -> str:
    """
    >>> _protocol("retest", "reacher_hard"), _protocol("scratch", None)
    ('retest after reacher_hard', 'scratch')
    """
    words = {TRANSFER: "transfer from", RETESTED: "retest after"}.get(protocol, f"{protocol} with")
    return f"{words} {source}" if source else protocol


def _best_public(line: Line) -> str:
    """Of systems that learn from scratch, at the line's frames."""
    found = [public for public in line.public if public.frames == line.paper.frames]
    if not found:
        return ""
    best = max(found, key=lambda public: public.mean)
    return f"{_mean(best.mean, best.std)} {best.system}"


def _mean(mean: float | None, std: float | None) -> str:
    return short(mean) if std is None else f"{short(mean)} ± {short(std)}"


def notes(plan: Plan, lines: Sequence[Line]) -> list[str]:
    """What has to be known to read the table."""
    scale, experiment = plan.choice.scale, plan.choice.experiment
    said = [
        f"Scale {scale.name}: {scale.means}; here {plan.frames:,} frames of each task and {len(plan.seeds)} seeds.",
        *(f"{name}: {_settings(scale.methods[own])}." for name, own in plan.methods.items()),
        *(f"{reason[0].upper()}{reason[1:]}." for reason in plan.left_out),
        f"Batch: of our runs; the paper's methods have {PAPER_BATCH}.",
        "Ours: mean and std over seeds, interquartile mean, 95 % bootstrap intervals (docs/metrics.md).",
        "Public systems learn from scratch.",
    ]
    if experiment.effects:
        shown = {line.paper.protocol for line in lines}
        said += [f"{name}: {formula}." for name, formula in FORMULAS.items() if name in shown]
        said.append("The paper's figures of these lines are computed here, from the scores it prints.")
    return said


def _settings(method: MethodSettings) -> str:
    """
    >>> _settings(MethodSettings("compact", {"encoder.kind": "cnn"}))
    'preset compact with encoder.kind cnn'
    """
    changed = [f"{name} {value}" for name, value in method.overrides.items()]
    changed += [f"transfer.{name} {value}" for name, value in method.transfer.items()]
    return f"preset {method.preset}" + (f" with {', '.join(changed)}" if changed else "")


def as_markdown(plan: Plan, lines: Sequence[Line]) -> str:
    """A page with the table, its notes, and all public scores."""
    parts = [f"# {title(plan)}", markdown(cells(plan, lines))]
    parts.append("\n".join(f"- {note}" for note in notes(plan, lines)))
    tasks = dict.fromkeys(line.paper.task for line in lines if line.public)
    if tasks:
        parts += ["## Public scores, from scratch", markdown(_public_cells(list(tasks)))]
    return "\n\n".join(parts) + "\n"


def _public_cells(tasks: Sequence[str]) -> Cells:
    headings = ["task", "system", *(f"{frames:,} frames" for frames in PUBLIC_FRAMES)]
    lines = []
    for task in tasks:
        scores = public_scores(task)
        for system in dict.fromkeys(score.system for score in scores):
            at = {score.frames: _mean(score.mean, score.std) for score in scores if score.system == system}
            lines.append([task, system, *(at.get(frames, "") for frames in PUBLIC_FRAMES)])
    return [headings, *lines]


def as_csv(plan: Plan, lines: Sequence[Line]) -> str:
    """One row per line, numbers only."""
    text = io.StringIO()
    rows = [_flat(plan, line) for line in lines]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(plan: Plan, line: Line) -> dict[str, JSON]:
    paper, ours = line.paper, line.ours
    mean_interval, iqm_interval = (ours.mean_interval, ours.iqm_interval) if ours else (None, None)
    return {
        "method": paper.method,
        "batch": plan.batch_size(paper.method),
        "task": paper.task,
        "protocol": paper.protocol,
        "source": paper.source,
        "frames": paper.frames,
        "seeds": ours.seeds if ours else 0,
        "mean": ours and ours.mean,
        "std": ours and ours.std,
        "mean_low": mean_interval and mean_interval.low,
        "mean_high": mean_interval and mean_interval.high,
        "iqm": ours and ours.iqm,
        "iqm_low": iqm_interval and iqm_interval.low,
        "iqm_high": iqm_interval and iqm_interval.high,
        "first_frames_run": ours and ours.frames[0],
        "last_frames_run": ours and ours.frames[1],
        "paper_mean": paper.mean,
        "paper_std": paper.std,
        "flags": "; ".join(line.flags),
    }


def as_data(plan: Plan, lines: Sequence[Line], out: Path) -> Mapping[str, JSON]:
    """Everything, for programs; learning curves too where the paper draws curves."""
    experiment = plan.choice.experiment
    data: dict[str, JSON] = {
        "experiment": experiment.name,
        "title": title(plan),
        "scale": plan.choice.scale.name,
        "frames": plan.frames,
        "seeds": list(plan.seeds),
        "methods": {name: _settings(plan.choice.scale.methods[own]) for name, own in plan.methods.items()},
        "left_out": plan.left_out,
        "runs": list(plan.runs),
        "formulas": FORMULAS if experiment.effects else {},
        "lines": [
            {**_flat(plan, line), "flags": line.flags, "public": [p._asdict() for p in line.public]} for line in lines
        ],
        "table": cells(plan, lines),  # as people read it: reports show it
        "notes": notes(plan, lines),
    }
    return data | ({"curves": Results(plan, out).curves()} if experiment.paper_rows is None else {})


def write(plan: Plan, lines: Sequence[Line], out: Path) -> list[Path]:
    """The table as .md, .csv and .json in `out`."""
    stem = f"{plan.choice.experiment.name}-{plan.choice.scale.name}"
    contents = {
        ".md": as_markdown(plan, lines).encode(),
        ".csv": as_csv(plan, lines).encode(),
        ".json": to_json(as_data(plan, lines, out)),
    }
    for suffix, content in contents.items():
        write_atomic(out / f"{stem}{suffix}", content)
    return [out / f"{stem}{suffix}" for suffix in contents]


def show(plan: Plan, lines: Sequence[Line], console: Console) -> None:
    """A table on a terminal, Markdown elsewhere; the notes after it."""
    if console.is_terminal:
        console.print(as_table(title(plan), cells(plan, lines)))
    else:
        console.print(f"## {title(plan)}\n\n{markdown(cells(plan, lines))}\n", markup=False, soft_wrap=True)
    for note in notes(plan, lines):
        console.print(f"- {note}", markup=False, soft_wrap=True)
