"""Table of a search's trials: one JSON line per trial and seed, grouped by what was tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from result_runs import ResultsError

from ctrlformer.analysis.metrics import markdown

NOT_SETTINGS = ("seed", "curve", "final", "auc", "q", "monte_carlo", "minutes", "diagnostics", "training_returns")
ALIKE = "The same in all of these: "


def trials(path: Path) -> str:
    """A line per setting: task, what differs between the settings, seeds, and the mean score at every evaluation."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in _lines(path):
        groups.setdefault(json.dumps(_setting(line), sort_keys=True), []).append(line)
    settings = [_flat(json.loads(key)) for key in groups]
    shared = {name: value for name, value in settings[0].items() if all(one.get(name) == value for one in settings)}
    lines = []
    for setting, group in zip(settings, groups.values(), strict=True):
        differs = [f"{name} {value}" for name, value in setting.items() if name not in shared and name != "task"]
        scores = ", ".join(_point(group, frames) for frames, *_ in group[0]["curve"])
        seeds = ", ".join(str(one["seed"]) for one in group)
        lines.append([group[0]["task"], "; ".join(differs) or "as below", seeds, scores])
    same = "; ".join(f"{name} {value}" for name, value in shared.items() if name != "task")
    table = markdown([["task", "setting", "seeds", "score at frames"], *sorted(lines)])
    return f"{table}\n\n{ALIKE}{same}." if same else table


def offline(path: Path, task: str, parts: list[str]) -> str:
    """A line per encoder and losses: how well features tell these parts of the state on held-out episodes (R2)."""
    head = ["encoder", "losses", "episodes", "updates", *(f"{part}: linear, MLP" for part in parts)]
    lines = [
        [line["encoder"], " + ".join(line["losses"]), str(line["episodes"]), str(line["updates"])]
        + [f"{line['linear_r2'][part]:.2f}, {line['mlp_r2'][part]:.2f}" for part in parts]
        for line in _lines(path)
        if line["task"] == task
    ]
    return markdown([head, *sorted(lines)])


def records(path: Path, columns: list[str]) -> str:
    """A line per record, with these of its fields; what a record lacks is left blank."""
    lines = [[_cell(line.get(column, "")) for column in columns] for line in _lines(path)]
    return markdown([[column.replace("_", " ") for column in columns], *lines])


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise ResultsError(f"no file {path}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON lines: {error}") from None
    if not found:
        raise ResultsError(f"{path} is empty")
    return found


def _setting(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in NOT_SETTINGS}


def _flat(setting: Mapping[str, Any]) -> dict[str, Any]:
    """With the inner `settings` beside the rest, as text without sections."""
    inner = setting.get("settings", {})
    return {name: value for name, value in setting.items() if name != "settings"} | dict(inner)


def _point(group: list[dict[str, Any]], frames: int) -> str:
    """The mean over seeds at an evaluation, with the std where there are several."""
    scores = [point[1] for one in group for point in one["curve"] if point[0] == frames]
    spread = f" ± {pstdev(scores):.0f}" if len(scores) > 1 else ""
    return f"{frames / 1000:g}k: {mean(scores):.0f}{spread}"
