"""Explanations in a run folder, some of them hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import config, write

from ctrlformer.errors import RunError
from ctrlformer.report.attention import read_explained
from ctrlformer.report.page import write_report

TASK: dict[str, Any] = {
    "task": "a",
    "method": "attention rollout",
    "attention": "a.png",
    "share_on_moving": None,
    "after_later_stages": [],
    "video": None,
}


def explained(folder: Path, *tasks: dict[str, Any]) -> Path:
    write(folder, config("a"))
    (folder / "explain").mkdir()
    (folder / "explain" / "a.png").write_bytes(b"picture")
    (folder / "explain" / "explain.json").write_text(json.dumps({"tasks": tasks}))
    return folder


def test_pictures_stand_inside_the_page(tmp_path: Path) -> None:
    found = read_explained("run", explained(tmp_path / "run", TASK))
    assert found.looked[0].picture == "data:image/png;base64,cGljdHVyZQ=="
    assert "cGljdHVyZQ==" in write_report([tmp_path / "run"], tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/passwd", "../a.png", "a.png/../../secret.png", "", 7, "a.svg"]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: object) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    with pytest.raises(RunError, match=r"explain\.json"):
        read_explained("run", explained(tmp_path / "run", TASK | {"attention": name}))


@pytest.mark.parametrize("shares", [{}, {"trained": 0.1, "untrained": 0.1}, [0.1, 0.1, 0.1], "none"])
def test_shares_that_are_not_all_there_are_refused(tmp_path: Path, shares: object) -> None:
    with pytest.raises(RunError, match=r"explain\.json"):
        read_explained("run", explained(tmp_path / "run", TASK | {"share_on_moving": shares}))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = explained(tmp_path / "run", TASK | {"attention": "b.png"})
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "explain" / "b.png").symlink_to(tmp_path / "secret")
    with pytest.raises(RunError, match=r"b\.png"):
        read_explained("run", folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"tasks": [1]}', '{"tasks": [{"task": "a"}]}'])
def test_a_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    folder = explained(tmp_path / "run")
    (folder / "explain" / "explain.json").write_text(text)
    with pytest.raises(RunError, match=r"explain\.json"):
        read_explained("run", folder)
