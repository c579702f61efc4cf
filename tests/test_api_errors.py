"""The Python functions raise one family of exceptions, whatever is wrong with paths, settings and files."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_runs

import ctrlformer
from ctrlformer import CtrlFormerError
from ctrlformer.storage.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was stopped at its beginning."""
    folder = tmp_path_factory.mktemp("api") / "run"
    with pytest.raises(KeyboardInterrupt):
        small_runs.start(folder, None, small_runs.SignalAt(step=2))
    return RunFolder.open(folder)


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    with warnings.catch_warnings(action="ignore"), pytest.raises(CtrlFormerError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    assert str(caught.value)


def test_every_kind_is_of_the_family() -> None:
    from ctrlformer import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) == 7
    assert all(issubclass(kind, CtrlFormerError) for kind in kinds)
    page = (Path(__file__).parents[1] / "docs" / "commands.md").read_text()
    assert all(f"`{kind.__name__}`" in page for kind in kinds)  # every one is documented


@pytest.mark.parametrize("path", ["absent", "file", "a/b/c", "x" * 300, "nul\0byte", "/dev/null", "/proc/1/mem"])
def test_paths_that_are_no_runs(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("a file")
    for call in (ctrlformer.load, ctrlformer.resume, ctrlformer.evaluate):
        refused(call, tmp_path / path)
    refused(ctrlformer.add, tmp_path / path, "toy/slide")


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": []},
        {"tasks": ""},
        {"tasks": "toy/nothing"},
        {"tasks": ["toy/reach", "toy/reach"]},
        {"tasks": "gym/NoSuchTask-v0"},
        {"tasks": "gym/no_such_module:Task-v0"},
        {"preset": "nothing"},
        {"frames": 0},
        {"frames": "many"},
        {"frames": 1.5},
        {"seed": -1},
        {"seed": "one"},
        {"seed": 2**40},
        {"together": True},
        {"run": "/proc/no/such/place"},
        {"run": "a\nb"},
        {"run": "nul\0byte/run"},
        {"overrides": {"agent.discount": 2.0}},
        {"overrides": {"agent.discount": "high"}},
        {"overrides": {"agent.discount": float("nan")}},
        {"overrides": {"agent.discount": object()}},
        {"overrides": {"agent.nothing": 1}},
        {"overrides": {"": 1}},
        {"overrides": {"training.device": "meta"}},
        {"overrides": {"encoder.patch_size": 5}},
        {"overrides": {"encoder.dim": 10**6}},
        {"overrides": {"env.image_size": 10**6}},
        {"overrides": {"encoder.kind": "resnet50"}},
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    refused(ctrlformer.train, **({"tasks": "toy/reach", "preset": "tiny", "quiet": True} | settings))


def test_wrong_wishes_about_a_sound_run(run: RunFolder, tmp_path: Path) -> None:
    refused(ctrlformer.evaluate, run.path, task="toy/slide")
    refused(ctrlformer.evaluate, run.path, task="nothing")
    refused(ctrlformer.evaluate, run.path, episodes=0)
    refused(ctrlformer.evaluate, run.path, episodes="many")
    refused(ctrlformer.add, run.path, "toy/slide", quiet=True)  # it has not finished
    refused(ctrlformer.add, run.path, "toy/reach", quiet=True)
    refused(ctrlformer.add, run.path, "toy/slide", overrides={"transfer.heads": "none"})
    refused(ctrlformer.add, run.path, "toy/slide", frames=0, quiet=True)
    refused(ctrlformer.load(run.path).act, None, task="toy/slide")
    refused(ctrlformer.make_env, "nothing")


def test_loading_a_run_never_imports_code_named_in_it(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "untrusted_code.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = json.loads((run.path / "config.json").read_text())
    for task in ("gym/untrusted_code:Task-v0", "gym/untrusted_code.sub:Task-v0"):
        folder = tmp_path / task.replace("/", "-")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | {"tasks": [task]}))
        for call in (ctrlformer.load, ctrlformer.evaluate, ctrlformer.resume):
            refused(call, folder)
        refused(ctrlformer.add, folder, "toy/slide", quiet=True)
        refused(ctrlformer.make_env, task)
    assert "untrusted_code" not in sys.modules
