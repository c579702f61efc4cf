"""NaN and infinity where numbers should be: found in the update they come in, and never saved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from broken_runs import broken_config, evenly, go_on, start
from small_runs import assert_same, outcome
from tally import HowMany, Tally
from torch import Tensor

from ctrlformer.agents import SacAgent
from ctrlformer.agents.optimiser import Optimiser
from ctrlformer.agents.sac import losses
from ctrlformer.envs.pixels import FrameResult
from ctrlformer.envs.toy import Toy
from ctrlformer.errors import CtrlFormerError, NonFiniteError, TaskError
from ctrlformer.replay import Replay
from ctrlformer.storage import checkpoint

pytestmark = [pytest.mark.fault("nonfinite"), pytest.mark.usefixtures("quick_trainings")]
# Frames of the toy tasks in the small training, counted over everything that it plays.
EVALUATED = (1, 130, 260, 550)
COLLECTED = (60, 200, 330, 480)
BAD = (float("nan"), float("inf"), -float("inf"))


def assert_sound(folder: Path, expected: dict[str, Any]) -> None:
    """Its checkpoint holds finite numbers only, and goes on as if nothing had happened."""
    for group in checkpoint.load(folder / "checkpoints", warn=pytest.fail).tensors.values():
        assert all(bool(tensor.isfinite().all()) for tensor in group.values() if tensor.is_floating_point())
    assert_same(outcome(go_on(folder)), expected)


def test_a_reward_that_is_not_a_number_is_caught(
    tally: Tally, how_many: HowMany, expected: dict[str, Any], tmp_path: Path
) -> None:
    """1e39 is a number, but not one that fits where rewards are kept; a score may be so high."""
    cases = [(value, frame) for frame in (*EVALUATED, *COLLECTED) for value in BAD]
    cases += [(1e39, frame) for frame in COLLECTED]
    for value, frame in evenly(cases, how_many(3, len(cases))):
        with tally.case(f"reward {value}, frame {frame}"):
            folder = tmp_path / f"{value}{frame}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Toy, "step", step_with_reward(value, frame))
                with pytest.raises(NonFiniteError, match="reward"):
                    start(folder)
            assert_sound(folder, expected)


def step_with_reward(value: float, frame: int) -> Callable[..., FrameResult]:
    """The toy tasks' `step`, which gives another reward once."""
    real, frames = Toy.step, itertools.count()

    def step(toy: Toy, action: Any) -> FrameResult:
        shown = real(toy, action)
        return shown._replace(reward=value) if next(frames) == frame else shown

    return step


class SpoiltLoss:
    """One of the losses' functions, multiplied by a bad number at one of its calls inside updates."""

    def __init__(self, part: str, value: float, call: int) -> None:
        self._real, self._value, self._call = getattr(losses, part), value, call
        self._update, self._calls = SacAgent.update, itertools.count()
        self.updating = False

    def update(self, agent: SacAgent, *words: Any) -> Any:
        self.updating = True
        figures = self._update(agent, *words)
        self.updating = False
        return figures

    def __call__(self, *words: Any) -> Tensor:
        result: Tensor = self._real(*words)
        return result * self._value if self.updating and next(self._calls) == self._call else result


def test_a_loss_that_is_not_a_number_is_caught_in_its_update(
    tally: Tally, how_many: HowMany, expected: dict[str, Any], tmp_path: Path
) -> None:
    parts = ("td_target", "byol_loss", "actor_loss", "temperature_loss", "squared_drift")
    cases = [(part, value, call) for call in (0, 2) for value in BAD for part in parts]
    for part, value, call in evenly(cases, how_many(3, len(cases))):
        with tally.case(f"{part} {value}, call {call}"):
            folder, spoilt = tmp_path / f"{part}{value}{call}", SpoiltLoss(part, value, call)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(losses, part, spoilt)
                patch.setattr(SacAgent, "update", lambda *words, spoilt=spoilt: spoilt.update(*words))
                with pytest.raises(NonFiniteError, match="last checkpoint is intact"):
                    start(folder)
            assert spoilt.updating  # that update did not end
            assert_sound(folder, expected)


def test_a_gradient_that_is_not_a_number_is_caught_and_changes_nothing(
    tally: Tally, how_many: HowMany, expected: dict[str, Any], tmp_path: Path
) -> None:
    cases = [(name, value, call) for call in (0, 2) for value in BAD for name in ("critic", "actor", "temperature")]
    for name, value, call in evenly(cases, how_many(3, len(cases))):
        with tally.case(f"{name} gradient {value}, call {call}"):
            folder = tmp_path / f"{name}{value}{call}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Optimiser, "step", step_with_gradient(name, value, call))
                with pytest.raises(NonFiniteError, match=f"{name} gradient"):
                    start(folder)
            assert_sound(folder, expected)


def step_with_gradient(name: str, value: float, call: int) -> Callable[..., Tensor]:
    """The optimisers' `step`, which in one of them and once finds its gradients multiplied by a bad number."""
    real, calls = Optimiser.step, itertools.count()

    def step(optimiser: Optimiser, loss: Tensor, *clip: Any) -> Tensor:
        if optimiser.name != name or next(calls) != call:
            return real(optimiser, loss, *clip)
        before = [p.detach().clone() for p in optimiser.parameters]
        hooks = [p.register_hook(lambda gradient: gradient * value) for p in optimiser.parameters if p.requires_grad]
        try:
            return real(optimiser, loss, *clip)
        finally:
            for hook in hooks:
                hook.remove()
            assert all(map(torch.equal, before, optimiser.parameters))

    return step


# Pixels are bytes, which cannot hold NaN or infinity; what is not bytes is refused where it comes in.


class FloatPictures(gymnasium.Env[np.ndarray, np.ndarray]):
    """Its pictures become floating point numbers, one of them bad, after some frames."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's own attribute)
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    value, after = 0.0, 0

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._frames = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._frames += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        if self._frames < self.after:
            return np.full((42, 42, 3), self._frames, np.uint8)
        return np.full((42, 42, 3), self.value, np.float32)


@pytest.mark.parametrize("value", BAD)
def test_a_picture_of_anything_but_bytes_is_refused(
    value: float, tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "FloatPictures-v0" not in gymnasium.registry:
        gymnasium.register("FloatPictures-v0", FloatPictures, max_episode_steps=20, disable_env_checker=True)
    config = broken_config("gym/FloatPictures-v0", transfer__protect="none")
    monkeypatch.setattr(FloatPictures, "value", value)
    for after in (0, 70):
        monkeypatch.setattr(FloatPictures, "after", after)
        with tally.case(f"picture {value} after {after} frames"):
            with pytest.raises(TaskError, match="renders float32"):
                start(tmp_path / "run", config)
            assert (tmp_path / "run").exists() == bool(after)  # a task that never showed bytes never began
            if after:
                checkpoint.load(tmp_path / "run" / "checkpoints", warn=pytest.fail)


@pytest.mark.parametrize("value", BAD)
def test_features_that_are_not_numbers_are_not_stored(value: float, tally: Tally) -> None:
    replay = Replay(None, 10, 1, features=2)
    with tally.case(f"feature {value}"):
        with pytest.raises(CtrlFormerError, match="features of a frame are not finite"):
            replay.begin(np.array([0.0, value], np.float32))
        replay.begin(np.zeros(2, np.float32))
        with pytest.raises(CtrlFormerError, match="features of a frame are not finite"):
            replay.add(np.zeros(1, np.float32), 0.0, False, np.array([value, 0.0], np.float32))
        assert len(replay) == 0
