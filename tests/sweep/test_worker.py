"""One run of a sweep: begun, gone on with, or taken up after an attempt that was cut off anywhere."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import TASK, SignalAt, assert_same, outcome, small_config, start

from ctrlformer.config import Config, StageConfig, TransferConfig
from ctrlformer.errors import RunError
from ctrlformer.paper.plan import PlannedRun
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.sweep import worker
from ctrlformer.sweep.jobs import Job
from ctrlformer.sweep.processes import how_it_ended
from ctrlformer.sweep.processes import start as start_process

SECOND = "toy/slide"


def added(config: Config) -> Config:
    return dataclasses.replace(config, added=(StageConfig((SECOND,), 24, TransferConfig()),))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return start(tmp_path_factory.mktemp("out") / "runs" / "first", small_config(training__frames=24))


def job_in(parent: RunFolder, name: str) -> Job:
    out = parent.path.parent.parent
    return Job.of(PlannedRun(name, "ctrlformer", added(parent.config), "first"), out)


@pytest.fixture(scope="module")
def whole(parent: RunFolder) -> RunFolder:
    job = job_in(parent, "whole")
    worker.carry_out(Job.from_json(job.to_json()))
    return RunFolder.open(Path(job.folder))


def test_a_run_goes_on_in_a_copy_of_its_parent(parent: RunFolder, whole: RunFolder) -> None:
    assert whole.config.all_tasks == (TASK, SECOND)
    assert whole.stages_done() == 2
    assert parent.stages_done() == 1
    assert whole.read_evals()[: len(parent.read_evals())] == parent.read_evals()


def test_a_stopped_run_is_gone_on_with_and_a_finished_one_left_alone(parent: RunFolder, whole: RunFolder) -> None:
    job = job_in(parent, "stopped")
    with pytest.raises(KeyboardInterrupt):
        worker.carry_out(job, [SignalAt(step=5, stage=SECOND)])
    worker.carry_out(job)
    found = RunFolder.open(Path(job.folder))
    assert_same(outcome(found), outcome(whole))
    before = found.read_evals()
    worker.carry_out(job)
    assert found.read_evals() == before


def test_a_copy_that_was_cut_off_is_made_again(parent: RunFolder, whole: RunFolder) -> None:
    job = job_in(parent, "cut-off")
    RunFolder.create(Path(job.folder), parent.config)  # all that a copy has at first
    worker.carry_out(job)
    assert_same(outcome(RunFolder.open(Path(job.folder))), outcome(whole))


def test_a_run_killed_before_its_first_checkpoint_begins_again(parent: RunFolder, tmp_path: Path) -> None:
    job = Job.of(PlannedRun("again", "ctrlformer", parent.config, None), tmp_path)
    RunFolder.create(Path(job.folder), parent.config)
    worker.carry_out(job)
    assert_same(outcome(RunFolder.open(Path(job.folder))), outcome(parent))


def test_a_folder_with_other_settings_is_refused(parent: RunFolder, tmp_path: Path) -> None:
    job = Job.of(PlannedRun("other", "ctrlformer", small_config(training__frames=26), None), tmp_path)
    shutil.copytree(parent.path, job.folder)
    with pytest.raises(RunError, match=r"other settings than planned now \(training.frames\)"):
        worker.carry_out(job)


def test_a_run_that_a_dying_attempt_still_holds_is_waited_for(parent: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "held"
    shutil.copytree(parent.path, folder)
    code = f"""
import time
from ctrlformer.storage.run_folder import *
with RunFolder.open(Path({str(folder)!r})).lock():
    print("held", flush=True)
    time.sleep(3)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    worker.carry_out(Job.of(PlannedRun("held", "ctrlformer", parent.config, None), tmp_path))
    holder.communicate(timeout=60)


class TestProcess:
    def test_a_mistake_is_told_by_its_last_line(self, tmp_path: Path) -> None:
        config = small_config(training__device="abacus")
        job = Job.of(PlannedRun("wrong", "ctrlformer", config, None), tmp_path)
        process = start_process(job, dict(os.environ))
        process.wait(300)
        ended = how_it_ended(job, process)
        assert ended.outcome == "failed"
        assert ended.reason.startswith("training.device 'abacus' cannot be used here")
        assert job.log in ended.reason

    @pytest.mark.slow
    def test_it_saves_and_ends_when_the_one_who_started_it_dies(self, tmp_path: Path) -> None:
        config = small_config(training__frames=100_000, training__checkpoint_every_frames=1_000_000)
        job = Job.of(PlannedRun("orphan", "ctrlformer", config, None), tmp_path)
        code = f"""
import os, time
from ctrlformer.sweep.jobs import Job
from ctrlformer.sweep.processes import start
start(Job.from_json({job.to_json()!r}), dict(os.environ))
time.sleep(600)
"""
        parent = subprocess.Popen([sys.executable, "-c", code])
        folder = Path(job.folder)
        deadline = time.monotonic() + 300
        while not (folder / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        parent.kill()
        parent.wait()
        with RunFolder.open(folder).lock(patience=120):  # nobody holds it any more
            assert (folder / "checkpoints" / "last").read_text() != "0\n"
