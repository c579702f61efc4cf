"""Checkpoints under damage, crashes at every file operation, and full disks."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlformer.errors import CheckpointError, CtrlFormerError, NonFiniteError, RunError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.checkpoint import Checkpoint, candidates, load, save


def content(step: int) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """Small, and different for every step."""
    generator = torch.Generator().manual_seed(step)
    agent = {"weight": torch.rand(3, 4, generator=generator), "rng": generator.get_state()[:16]}
    return {"agent": agent, "optimiser": {"step": torch.tensor(step)}}, {"trainer": {"step": step, "score": 0.1}}


def save_step(folder: Path, step: int) -> Path:
    return save(folder, step, *content(step))


def is_content(loaded: Checkpoint, step: int) -> bool:
    tensors, state = content(step)
    return loaded.step == step and loaded.state == state and same(loaded.tensors, tensors)


def same(a: dict[str, dict[str, torch.Tensor]], b: dict[str, dict[str, torch.Tensor]]) -> bool:
    """Equal to the last bit, type and shape, NaN included."""
    return {k: set(v) for k, v in a.items()} == {k: set(v) for k, v in b.items()} and all(
        x.dtype == b[k][n].dtype and x.shape == b[k][n].shape and to_bytes(x) == to_bytes(b[k][n])
        for k, group in a.items()
        for n, x in group.items()
    )


def to_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
part_names = st.from_regex(r"[a-z0-9_]{1,12}", fullmatch=True).filter(lambda name: name != "manifest")
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(
    lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9 - 4).to(dtype),
    shapes,
    dtypes,
    st.integers(0, 99),
)
groups = st.dictionaries(part_names, st.dictionaries(st.text(min_size=1, max_size=8), tensors, max_size=3), max_size=3)


@settings(max_examples=40, deadline=None)
@given(step=st.integers(0, 10**12), groups=groups, state=st.dictionaries(part_names, json_values, max_size=3))
def test_what_is_saved_is_loaded(step: int, groups: dict[str, dict[str, torch.Tensor]], state: dict[str, Any]) -> None:
    # safetensors keeps one name, "__metadata__", for itself.
    groups = {k: {n: t for n, t in v.items() if n != "__metadata__"} for k, v in groups.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), step, groups, state)
        loaded = load(Path(folder), warn=pytest.fail)
    assert (loaded.step, loaded.path) == (step, path)
    assert loaded.state == state
    assert same(loaded.tensors, groups)


def test_views_transposes_and_shared_tensors_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    group = {"whole": whole, "same": whole, "part": whole[1:], "turned": whole.T}
    save(tmp_path, 1, {"agent": group}, {})
    assert same(load(tmp_path).tensors, {"agent": group})


def test_the_last_two_are_kept_and_last_names_the_newest(tmp_path: Path) -> None:
    for step in (0, 5, 10, 100, 1000):
        save_step(tmp_path, step)
    assert names(tmp_path) == ["100", "1000", "last"]
    assert (tmp_path / "last").read_text() == "1000\n"
    assert is_content(load(tmp_path, warn=pytest.fail), 1000)
    assert [c.step for c in candidates(tmp_path)] == [1000, 100]


def test_a_step_saved_again_does_not_endanger_the_first(tmp_path: Path) -> None:
    save_step(tmp_path, 7)
    for count in range(3):
        save(tmp_path, 7, {}, {"again": count})
    assert names(tmp_path) == ["7.2", "7.3", "last"]
    assert load(tmp_path).state == {"again": 2}


def test_a_damaged_later_one_goes_when_training_has_gone_back(tmp_path: Path) -> None:
    for step in (1, 2):
        save_step(tmp_path, step)
    (tmp_path / "2" / "agent.safetensors").write_bytes(b"")
    assert load(tmp_path, warn=lambda message: None).step == 1
    save_step(tmp_path, 1)  # stopped again before step 2 came
    assert names(tmp_path) == ["1", "1.1", "last"]


def test_nothing_usable_is_one_clear_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            load(folder)
    save_step(tmp_path, 1)
    shutil.rmtree(tmp_path / "1")
    (tmp_path / "1").write_text("a file")
    with pytest.warns(UserWarning, match="manifest.json cannot be read"), pytest.raises(CheckpointError):
        load(tmp_path)


# Crashes: a child process really dies at the chosen operation, before or after it happened.

OPERATIONS = ("open", "mkdir", "fsync", "replace", "unlink", "rmdir")


def in_child(work: Callable[[], object]) -> int:
    """Exit code of a child that does `work`: 0 when it finishes, minus the signal when it is killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  a child must never come back into the test
            os._exit(99)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(target: int, after: bool, work: Callable[[], object]) -> None:
    """Do `work`, and be killed at its file operation number `target`."""
    count = 0

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            mine, count = count, count + 1
            if mine == target and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return original(*args, **kwargs)
            finally:
                if mine == target:
                    os.kill(os.getpid(), signal.SIGKILL)

        return operation

    for name in OPERATIONS:
        setattr(os, name, wrap(getattr(os, name)))  # only in this child
    work()


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_file_operation_leaves_a_sound_checkpoint(tmp_path: Path, after: bool) -> None:
    start = tmp_path / "start"
    for step in (1, 2):
        save_step(start, step)
    target, outcomes = 0, []
    while True:
        folder = tmp_path / f"crash{target}"
        shutil.copytree(start, folder)
        code = in_child(partial(die_at, target, after, partial(save_step, folder, 3)))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        loaded = load(folder, warn=pytest.fail)  # sound, and nothing half-done is even looked at
        assert is_content(loaded, loaded.step)
        outcomes.append(loaded.step)
        save_step(folder, 4)  # the next save tidies up
        assert is_content(load(folder, warn=pytest.fail), 4)
        assert names(folder) == [f"{loaded.step}", "4", "last"]
        target += 1
    assert outcomes == sorted(outcomes)  # the old one until one moment, the new one from then on
    assert set(outcomes) == {2, 3}
    assert len(outcomes) > 15


def test_the_first_save_may_crash_as_well(tmp_path: Path) -> None:
    assert in_child(lambda: die_at(5, False, partial(save_step, tmp_path, 1))) == -signal.SIGKILL
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        load(tmp_path)
    save_step(tmp_path, 1)
    assert names(tmp_path) == ["1", "last"]


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync, replace = os.fsync, os.replace
    renamed = []

    def noted_fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def checked_replace(source: Path, target: Path) -> None:
        if target.name == "1":
            assert {str(path) for path in [source, *source.iterdir()]} <= synced
            synced.discard(str(tmp_path))
        renamed.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", checked_replace)
    save_step(tmp_path, 1)
    assert renamed == ["1", "last"]
    assert str(tmp_path) in synced


# Disks that refuse.


@pytest.mark.parametrize("operation", ["open", "mkdir", "fsync", "replace"])
@pytest.mark.parametrize("code", ["No space left on device", "Input/output error"])
def test_a_refused_operation_leaves_the_older_ones_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, code: str
) -> None:
    for step in (1, 2):
        save_step(tmp_path, step)
    original = getattr(os, operation)
    for allowed in range(100):
        calls = 0

        def refusing(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == allowed + 1:  # noqa: B023  used up before the next round
                raise OSError(28, code)
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, operation, refusing)
            try:
                save_step(tmp_path, 3)
                if calls <= allowed:
                    break
            except CtrlFormerError as error:
                message = str(error)
                assert code in message
                assert "\n" not in message
        loaded = load(tmp_path, warn=pytest.fail)
        assert loaded.step in (2, 3)
        assert is_content(loaded, loaded.step)
        for path in [*tmp_path.glob("3*")]:
            shutil.rmtree(path)
    assert is_content(load(tmp_path), 3)


@pytest.mark.parametrize("limit", [0, 1, 100, 300])
def test_a_disk_that_fills_up_in_the_middle_of_a_file(tmp_path: Path, limit: int) -> None:
    """The system itself cuts the write short, at a limit on the size of files."""
    save_step(tmp_path, 1)

    def fill_up() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(RunError, match="File too large; older checkpoints are intact"):
            save_step(tmp_path, 2)

    assert in_child(fill_up) == 0
    assert names(tmp_path) == ["1", "last"]
    assert is_content(load(tmp_path, warn=pytest.fail), 1)


def test_a_disk_that_lies_is_found_out_before_the_older_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save_step(tmp_path, step)
    honest = checkpoint.write_durable
    monkeypatch.setattr(checkpoint, "write_durable", lambda path, data: honest(path, data[:-1] + b"?"))
    with pytest.raises(CheckpointError, match=r"checkpoint file .*/3/"):
        save_step(tmp_path, 3)
    assert names(tmp_path) == ["1", "2", "last"]
    assert is_content(load(tmp_path, warn=pytest.fail), 2)


# What must not be saved.


def test_state_that_is_not_finite_makes_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="trainer"):
        save(tmp_path, 1, {}, {"trainer": {"score": float("nan")}})
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "A", "manifest", "a.b", "x" * 65])
def test_part_names_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="checkpoint part"):
        save(tmp_path, 1, {}, {name: 1})
    with pytest.raises(ValueError, match="checkpoint part"):
        save(tmp_path, 1, {name: {}}, {})


def test_the_manifest_lists_every_file_with_its_sum(tmp_path: Path) -> None:
    path = save_step(tmp_path, 12)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"]) == (checkpoint.FORMAT, 12)
    assert set(manifest["files"]) == {p.name for p in path.iterdir()} - {"manifest.json"}
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
