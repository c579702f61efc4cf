"""The run folder: one training at a time, logs that can be cut back, and foreign folders left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import small_runs

from ctrlformer.config.presets import preset
from ctrlformer.errors import CheckpointError, NonFiniteError, RunError
from ctrlformer.storage import run_folder
from ctrlformer.storage.run_folder import CONFIG, EVALS, METRICS, RunFolder

CONFIGURATION = replace(preset("tiny"), tasks=("toy/reach",), seed=7)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIGURATION)


def test_what_create_writes_open_reads(run: RunFolder) -> None:
    assert RunFolder.open(run.path).config == CONFIGURATION


def test_create_takes_an_empty_folder_but_no_other(tmp_path: Path, run: RunFolder) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert RunFolder.create(empty, CONFIGURATION).path == empty
    with pytest.raises(RunError, match=r"already holds config\.json: resume"):
        RunFolder.create(run.path, CONFIGURATION)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot create run folder"):
        RunFolder.create(tmp_path / "file", CONFIGURATION)
    with pytest.raises(RunError, match="unprintable"):
        RunFolder.create(tmp_path / "a\nb", CONFIGURATION)


def test_create_after_a_crash_before_the_config_was_whole(tmp_path: Path) -> None:
    (tmp_path / ".tmp-config.json").write_text('{"half')
    assert RunFolder.open(RunFolder.create(tmp_path, CONFIGURATION).path).config == CONFIGURATION


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(RunError, match="cannot create run folder /proc/run"):
        RunFolder.create(Path("/proc/run"), CONFIGURATION)


def test_open_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run folder"):
        RunFolder.open(tmp_path / "absent")
    with pytest.raises(RunError, match="cannot read"):
        RunFolder.open(tmp_path / ("x" * 300))
    with pytest.raises(RunError, match=r"has no config\.json"):
        RunFolder.open(tmp_path)
    for content in (b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b" " * (2 << 20), b'{"seed": 1}'):
        (tmp_path / CONFIG).write_bytes(content)
        with pytest.raises(RunError, match=r"config\.json") as caught:
            RunFolder.open(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_second_training_is_refused_with_the_first_ones_process(run: RunFolder) -> None:
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    with run.lock():
        with pytest.raises(RunError, match=holder), RunFolder.open(run.path).lock():
            pass
        script = (
            f"from ctrlformer.storage.run_folder import *\nwith RunFolder.open(Path({str(run.path)!r})).lock(): pass"
        )
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert holder in other.stderr
        assert other.returncode != 0
    with run.lock():  # free again
        pass


def test_the_lock_of_a_killed_process_is_taken_over(run: RunFolder) -> None:
    child = os.fork()
    if child == 0:
        with run.lock():
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert f"process {child} " in (run.path / "lock").read_text()
    with run.lock():
        assert f"process {os.getpid()} " in (run.path / "lock").read_text()


def test_a_lock_that_a_dying_process_still_holds_is_waited_for(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 60.0)
    hold = f"""
import time
from ctrlformer.storage.run_folder import *
with RunFolder.open(Path({str(run.path)!r})).lock():
    print("held", flush=True)
    time.sleep(0.3)
"""
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with run.lock():
            assert f"process {os.getpid()} " in (run.path / "lock").read_text()


def test_a_lock_file_with_hostile_text_is_not_shown(run: RunFolder) -> None:
    with run.lock():
        (run.path / "lock").write_text("process 1 on \x1b[31mhost\nsecond line")
        with pytest.raises(RunError, match="in use by another process"), RunFolder.open(run.path).lock():
            pass


def test_rows_read_back_in_order(run: RunFolder) -> None:
    assert run.read_metrics() == run.read_evals() == []
    rows = [{"step": k, "loss": 0.1 * k, "task": "ünï\n", "returns": [1.5, None]} for k in range(5)]
    for row in rows:
        run.append_metrics(row)
    run.append_eval({"mean": 3.0})
    assert run.read_metrics() == rows
    assert run.read_evals() == [{"mean": 3.0}]


def test_logs_are_cut_back_to_a_checkpoint(run: RunFolder) -> None:
    assert run.log_positions() == {METRICS: 0, EVALS: 0}
    run.append_metrics({"step": 1})
    run.append_eval({"step": 1})
    positions = run.log_positions()
    before = {name: (run.path / name).read_bytes() for name in (METRICS, EVALS)}
    run.append_metrics({"step": 2})
    with (run.path / EVALS).open("ab") as file:
        file.write(b'{"half a')  # as a full disk may leave it
    run.truncate_logs(positions)
    assert {name: (run.path / name).read_bytes() for name in (METRICS, EVALS)} == before
    run.append_metrics({"step": 2})
    assert [row["step"] for row in run.read_metrics()] == [1, 2]


def test_logs_shorter_than_the_checkpoint_saw_are_named(run: RunFolder) -> None:
    run.append_metrics({"step": 1})
    positions = run.log_positions()
    (run.path / METRICS).write_bytes(b"")
    with pytest.raises(RunError, match=r"metrics\.jsonl has lost rows"):
        run.truncate_logs(positions)
    for wrong in ({}, {**positions, EVALS: -1}, {**positions, EVALS: "0"}):
        with pytest.raises(CheckpointError, match="makes no sense"):
            run.truncate_logs({**wrong, METRICS: 0} if wrong else wrong)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        (b'{"a": 1}\n\n{"a": 2}\n', "line 2: not JSON"),
        (b'{"a": 1}\n[1]\n', "line 2: not a JSON object"),
        (b'{"a": 1}\n{"a": 2}\n{"a"', "line 3: cut off"),
        (b'{"a": 1}\n\xff\xfe\n', "line 2: not JSON"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
    ],
)
def test_a_broken_line_is_named(run: RunFolder, content: bytes, complaint: str) -> None:
    (run.path / EVALS).write_bytes(content)
    with pytest.raises(RunError, match=rf"evals\.jsonl, {complaint}") as caught:
        run.read_evals()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_refused_and_named(run: RunFolder, value: float) -> None:
    with pytest.raises(NonFiniteError, match="critic_loss"):
        run.append_metrics({"step": 1, "critic_loss": value})
    assert run.read_metrics() == []


def test_a_row_that_cannot_be_written(run: RunFolder) -> None:
    (run.path / METRICS).symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cannot write .*metrics\.jsonl"):
        run.append_metrics({"step": 1})


def test_folders_stay_inside_the_run(run: RunFolder, tmp_path: Path) -> None:
    assert run.replay("cartpole_swingup") == run.path / "replay" / "cartpole_swingup"
    assert run.replay("gym/CarRacing-v3") == run.path / "replay" / "gym+CarRacing-v3"
    for name in ("", "..", "../x", "/etc", "a/../b", "a//b", "a\nb", "a+b", ".hidden", "x" * 201):
        with pytest.raises(RunError, match="cannot name a file"):
            run.replay(name)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("checkpoints", "videos", "replay"):
        (run.path / name).symlink_to(outside)
    for attempt in (lambda: run.checkpoints, lambda: run.videos, lambda: run.replay("walker_walk")):
        with pytest.raises(RunError, match="link to another place"):
            attempt()


def test_trackers_write_through_no_link(run: RunFolder, tmp_path: Path) -> None:
    run.refuse_links("tensorboard", "wandb")
    (run.path / "tensorboard").symlink_to(tmp_path)
    with pytest.raises(RunError, match="tensorboard is a link to another place"):
        run.refuse_links("tensorboard", "wandb")


def test_a_file_of_any_length_is_not_copied(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "kept").mkdir()
    with open(run.path / "kept" / "endless.safetensors", "wb") as file:
        file.truncate(1 << 40)  # takes no room: nothing is in it
    with pytest.raises(RunError, match="cannot copy run"):
        run.copy(tmp_path / "copy")
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path / "copy")


def test_the_environment_says_what_the_run_ran_on(run: RunFolder) -> None:
    assert run.read_environment() == {}
    run.write_environment(device="cpu", gl="egl", pixels="0a1b")
    facts = run.read_environment()
    assert (facts["device"], facts["gl"], facts["pixels"]) == ("cpu", "egl", "0a1b")
    assert facts["versions"]["numpy"]
    assert facts["command"]
    assert facts["commit"] is None or len(facts["commit"].removesuffix("-dirty")) == 40
    for content in (b"{", b"[]"):
        (run.path / "environment.json").write_bytes(content)
        with pytest.raises(RunError, match=r"environment\.json is not"):
            run.read_environment()


def test_a_run_is_read_without_torch() -> None:
    script = "import sys, ctrlformer.storage.run_folder; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_stages_done_are_seen_without_torch_and_nonsense_counts_as_none(tmp_path: Path) -> None:
    run = small_runs.start(tmp_path / "whole", small_runs.small_config("toy/reach", "toy/slide", training__frames=12))
    assert run.stages_done() == 2
    (run.checkpoints / "last").write_text("../../elsewhere\n")
    assert run.stages_done() == 0
