"""Stacking, action repeat and rescaling, on a simulator whose every frame is known."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from ctrlformer.config import EnvConfig
from ctrlformer.envs.pixels import FrameResult, PixelEnv
from ctrlformer.errors import NonFiniteError, RenderError, TaskError


class Counter:
    """Paints the number of frames done; reward is that number too; ends at frame `length`."""

    def __init__(self, length: int = 10, terminates: bool = False) -> None:
        self.action_low = np.array([0.0, -2.0])
        self.action_high = np.array([10.0, 2.0])
        self.length, self.terminates = length, terminates
        self.actions: list[NDArray[np.float64]] = []
        self.seeds: list[int] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self.frames = 0

    def step(self, action: NDArray[np.float64]) -> FrameResult:
        self.actions.append(action)
        self.frames += 1
        over = self.frames >= self.length
        return FrameResult(float(self.frames), over and self.terminates, over and not self.terminates)

    def pixels(self, size: int) -> NDArray[np.uint8]:
        return np.full((size, size, 3), self.frames, np.uint8)

    def close(self) -> None:
        self.closed = True


def make(repeat: int = 1, stack: int = 3, **kind: object) -> tuple[PixelEnv, Counter]:
    counter = Counter(**kind)  # type: ignore[arg-type]
    return PixelEnv("counter", counter, repeat, EnvConfig(frame_stack=stack)), counter


def shown(observation: NDArray[np.uint8]) -> list[int]:
    """The number painted on each frame of a stack, oldest first."""
    frames = np.split(observation, observation.shape[-1] // 3, axis=-1)
    assert all((frame == frame.flat[0]).all() for frame in frames)
    return [int(frame.flat[0]) for frame in frames]


REST = np.zeros(2, np.float32)


def test_first_frame_fills_the_stack_and_the_newest_comes_last() -> None:
    env, _ = make(repeat=2)
    observation, info = env.reset(seed=1)
    assert observation.shape == (84, 84, 9)
    assert observation.dtype == np.uint8
    assert shown(observation) == [0, 0, 0]
    assert info["frames"] == 0
    assert shown(env.step(REST)[0]) == [0, 0, 2]
    assert shown(env.step(REST)[0]) == [0, 2, 4]
    assert shown(env.step(REST)[0]) == [2, 4, 6]
    assert shown(env.reset(seed=2)[0]) == [0, 0, 0]


def test_an_observation_never_changes_later() -> None:
    env, _ = make()
    first, _ = env.reset(seed=1)
    env.step(REST)
    assert shown(first) == [0, 0, 0]


def test_repeat_sums_rewards_and_counts_frames() -> None:
    env, _ = make(repeat=4)
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(REST)
    assert (reward, terminated, truncated, info["frames"]) == (1 + 2 + 3 + 4, False, False, 4)


@pytest.mark.parametrize("terminates", [True, False])
def test_an_episode_that_ends_within_a_repeat_stops_there(terminates: bool) -> None:
    env, counter = make(repeat=4, length=6, terminates=terminates)
    env.reset(seed=1)
    env.step(REST)
    observation, reward, terminated, truncated, info = env.step(REST)
    assert (reward, info["frames"], counter.frames) == (5 + 6, 2, 6)
    assert (terminated, truncated) == (terminates, not terminates)
    assert shown(observation)[-1] == 6


def test_a_step_outside_an_episode_is_refused() -> None:
    env, _ = make(length=1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(REST)
    env.reset(seed=1)
    env.step(REST)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(REST)


@pytest.mark.parametrize(
    ("given", "native"),
    [([-1, -1], [0, -2]), ([1, 1], [10, 2]), ([0, 0], [5, 0]), ([0.5, -0.5], [7.5, -1]), ([-9, 9], [0, 2])],
)
def test_actions_are_clipped_and_rescaled(given: list[float], native: list[float]) -> None:
    env, counter = make()
    env.reset(seed=1)
    env.step(np.array(given, np.float32))
    np.testing.assert_allclose(counter.actions[-1], native)


def test_bad_actions_are_named() -> None:
    env, counter = make()
    env.reset(seed=1)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.zeros(3, np.float32))
    with pytest.raises(NonFiniteError, match="counter"):
        env.step(np.array([np.nan, 0], np.float32))
    assert counter.frames == 0


def test_a_non_finite_reward_is_passed_on() -> None:
    env, counter = make(repeat=3)
    counter.step = lambda action: FrameResult(float("nan"), False, False)  # type: ignore[method-assign]
    env.reset(seed=1)
    assert np.isnan(env.step(REST)[1])


def test_seeds_reach_the_simulator() -> None:
    env, counter = make()
    env.reset(seed=7)
    env.reset()
    env.reset()
    env.reset(seed=7)
    env.reset()
    first, second, third, fourth, fifth = counter.seeds
    assert first == fourth == 7
    assert second != third
    assert second == fifth  # Gymnasium: a seed also fixes the unseeded resets after it


def test_stack_and_size_follow_the_config() -> None:
    env = PixelEnv("counter", Counter(), 1, EnvConfig(image_size=32, frame_stack=2))
    observation, _ = env.reset(seed=1)
    assert observation.shape == env.observation_space.shape == (32, 32, 6)
    assert env.render(50).shape == (50, 50, 3)
    env.close()


@pytest.mark.parametrize(
    ("method", "kind", "what"),
    [("reset", TaskError, "failed in reset"), ("step", TaskError, "failed in step"), ("pixels", RenderError, "drawn")],
)
def test_what_a_simulator_raises_becomes_one_line_that_names_the_task(
    method: str, kind: type[Exception], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, counter = make()
    env.reset(seed=1)

    def fail(*_: object) -> None:
        raise RuntimeError("context\nlost")

    monkeypatch.setattr(counter, method, fail)
    with pytest.raises(kind, match=f"^task 'counter' .*{what}.*: RuntimeError: context lost$"):
        env.reset(seed=1) if method == "reset" else env.step(REST)


def test_a_simulator_that_cannot_even_be_closed_hides_no_earlier_error(monkeypatch: pytest.MonkeyPatch) -> None:
    env, counter = make()
    monkeypatch.delattr(Counter, "close")
    env.close()
    assert not hasattr(counter, "closed")
