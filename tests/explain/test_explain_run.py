"""`ctrlformer explain` on tiny real trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_runs import small_config, start

from ctrlformer.cli.main import main
from ctrlformer.explain.explain_run import alike
from ctrlformer.report.page import write_report

TASKS = ("toy/reach", "toy/slide")


@pytest.fixture(scope="module", params=["ctrlformer", "cnn"])
def explained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("runs") / "two"
    start(folder, small_config(*TASKS, encoder__kind=request.param, agent__contrastive=False))
    assert main(["explain", str(folder), "--video"]) == 0
    return folder, request.param


def index(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "explain" / "explain.json").read_text())
    return found


def test_every_task_has_its_maps_and_film(explained: tuple[Path, str]) -> None:
    folder, kind = explained
    tasks = index(folder)["tasks"]
    assert [task["task"] for task in tasks] == list(TASKS)
    for task in tasks:
        assert task["method"] == ("attention rollout" if kind == "ctrlformer" else "Grad-CAM")
        with Image.open(folder / "explain" / task["attention"]) as picture:
            assert picture.size == (6 * 168 + 5 * 6, 2 * 168 + 6)
        assert (folder / "explain" / task["video"]).stat().st_size > 1000


def test_attention_on_what_moves_is_measured_beside_an_untrained_agent(explained: tuple[Path, str]) -> None:
    for task in index(explained[0])["tasks"]:
        shares = task["share_on_moving"]
        assert set(shares) == {"trained", "untrained", "pixels"}
        assert all(0 <= share <= 1 for share in shares.values())
        assert 0.005 < shares["pixels"] < 0.1, "two balls"


def test_an_old_task_is_compared_with_its_own_end(explained: tuple[Path, str]) -> None:
    folder, _ = explained
    first, second = index(folder)["tasks"]
    (change,) = first["after_later_stages"]
    assert change["tasks"] == ["toy/slide"]
    assert 0 < change["similarity"] <= 1
    assert second["after_later_stages"] == []
    assert (folder / "explain" / change["file"]).is_file()


def test_similarity_says_what_is_compared(explained: tuple[Path, str]) -> None:
    folder, kind = explained
    found = index(folder)["similarity"]
    assert len(found) == (2 if kind == "ctrlformer" else 1)
    for one in found:
        cosines = np.array(one["cosines"])
        assert one["tasks"] == list(TASKS)
        np.testing.assert_allclose(np.diag(cosines), 1.0)
        np.testing.assert_allclose(cosines, cosines.T)
        assert (folder / "explain" / one["chord"]).is_file()
        assert (folder / "explain" / one["heat"]).is_file()


def test_the_report_shows_it(explained: tuple[Path, str], tmp_path: Path) -> None:
    page = write_report([explained[0]], tmp_path / "page.html").read_text()
    assert "<h2>Attention</h2>" in page
    assert page.count("data:image/png;base64,") == 2 + 2 + 2 * len(index(explained[0])["similarity"])
    assert page.count("data:video/mp4;base64,") == 2


def test_one_task_alone(explained: tuple[Path, str]) -> None:
    assert main(["explain", str(explained[0]), "--task", "toy/slide"]) == 0
    assert [task["task"] for task in index(explained[0])["tasks"]] == ["toy/slide"]


@pytest.mark.parametrize(
    "words", [["nowhere"], ["{run}", "--task", "toy/unknown"], ["{run}", "--task", "toy/reach_sparse"]]
)
def test_what_cannot_be_explained_is_refused_in_one_line(
    explained: tuple[Path, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *(word.format(run=explained[0]) for word in words)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_maps_of_the_same_places_are_alike() -> None:
    maps = np.random.default_rng(0).random((3, 4, 4), np.float32)
    assert alike(maps, 2 * maps) == pytest.approx(1.0)
    left, right = np.zeros((1, 2, 2), np.float32), np.zeros((1, 2, 2), np.float32)
    left[0, 0, 0] = right[0, 1, 1] = 1
    assert alike(left, right) == 0
