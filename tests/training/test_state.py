"""What a checkpoint says of a training: checked once, before anyone uses it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_runs

from ctrlformer.errors import CheckpointError
from ctrlformer.storage import checkpoint
from ctrlformer.storage.checkpoint import Checkpoint
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.training.state import TrainerState


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("state") / "run"
    with pytest.raises(KeyboardInterrupt):
        small_runs.start(folder, None, small_runs.SignalAt(step=4))
    return RunFolder.open(folder)


def test_what_a_training_wrote_is_read(run: RunFolder) -> None:
    state = TrainerState.read(checkpoint.load(run.checkpoints), run.config)
    assert state.position.tasks[0].steps == 4
    assert list(state.lanes) == [small_runs.TASK]


CHANGES: dict[str, Callable[[Any], object]] = {
    "not an object": lambda state: state.clear(),
    "negative stage": lambda state: state["position"].update(stage=-1),
    "stage beyond the last": lambda state: state["position"].update(stage=2),
    "negative frames": lambda state: state["position"]["tasks"][0].update(frames=-2),
    "no task": lambda state: state["position"].update(tasks=[]),
    "foreign lane": lambda state: state["lanes"].update({"../../x": state["lanes"][small_runs.TASK]}),
    "foreign kept": lambda state: state["kept"].update({"../../x": "0"}),
    "foreign task": lambda state: state["action_dims"].update({"x": 1}),
    "no actions": lambda state: state["action_dims"].update({small_runs.TASK: 0}),
    "countless actions": lambda state: state["action_dims"].update({small_runs.TASK: 10**9}),
    "other generator": lambda state: state["lanes"][small_runs.TASK]["random"].update(bit_generator="MT19937"),
    "no generator": lambda state: state["lanes"][small_runs.TASK].update(random={}),
    "sums without counts": lambda state: state["lanes"][small_runs.TASK]["averages"].update(sums={"x": 1.0}),
    "foreign source": lambda state: state["sources"].update({small_runs.TASK: {"task": "x", "heads": True}}),
    "negative probe steps": lambda state: state["position"]["tasks"][0].update(probe_steps=-1),
    "negative episode": lambda state: state["lanes"][small_runs.TASK].update(episode=-1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_no_sense_is_one_line(run: RunFolder, change: str) -> None:
    saved = checkpoint.load(run.checkpoints)
    state = copy.deepcopy(saved.state["trainer"])
    CHANGES[change](state)
    with pytest.raises(CheckpointError, match="does not fit this run") as caught:
        TrainerState.read(Checkpoint(saved.step, saved.tensors, {"trainer": state}, saved.path), run.config)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_a_training_is_refused(run: RunFolder) -> None:
    with pytest.raises(CheckpointError, match="expected an object, found None"):
        TrainerState.read(Checkpoint(0, {}, {}, Path("checkpoints/0")), run.config)
