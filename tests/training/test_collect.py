"""Episodes: seeds, scores, collecting and reopening, videos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from ctrlformer.agents.base import Memoryless, Policy
from ctrlformer.envs import make_env
from ctrlformer.envs.pixels import PixelEnv
from ctrlformer.errors import NonFiniteError, RunError
from ctrlformer.replay import Replay
from ctrlformer.training.collect import (
    EVALUATE,
    TRAIN,
    Abandoned,
    Collector,
    episode_seed,
    evaluate,
    film,
    record_video,
)

TASK = "toy/reach"


class Scripted:
    """ActingAgent by a fixed rule on what it sees; notes whether it was asked to explore."""

    def __init__(self) -> None:
        self.explored: list[bool] = []

    def policy(self, task: str, explore: bool, memory: Tensor | None = None) -> Policy:
        self.explored.append(explore)
        return Memoryless(lambda pixels: np.array([1.0, -1.0], np.float32) * (int(pixels.sum()) % 7 / 6.0))


@pytest.fixture
def env() -> Iterator[PixelEnv]:
    env = make_env(TASK)
    yield env
    env.close()


def test_seeds_differ_by_every_number_and_fit_31_bits() -> None:
    places = [(1, TRAIN, 0, 0), (2, TRAIN, 0, 0), (1, EVALUATE, 0, 0), (1, TRAIN, 1, 0), (1, TRAIN, 0, 1)]
    seeds = {episode_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_evaluation_uses_the_mean_action_and_repeats_itself(env: PixelEnv) -> None:
    agent, told = Scripted(), []
    first = evaluate(agent, env, TASK, 3, seed=5, on_episode=told.append)
    env.reset(seed=99)  # whatever came before
    assert evaluate(agent, env, TASK, 3, seed=5) == first
    assert told == [0, 1, 2, 3]
    assert agent.explored == [False] * 6
    assert len(set(first)) == 3
    assert evaluate(agent, env, TASK, 3, seed=6) != first
    assert evaluate(agent, env, TASK, 2, seed=5, first=1) == first[1:]


def test_an_evaluation_stops_between_two_steps_when_asked(env: PixelEnv) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Abandoned):
        evaluate(Scripted(), env, TASK, 1, seed=5, should_stop=lambda: next(asked))


def collector(env: PixelEnv, replay: Replay, longest: int | None = None) -> Collector:
    return Collector(Scripted(), env, replay, (1, 0, 0), longest=longest)


def step(played: Collector, random: np.random.Generator | None) -> tuple[int, float | None]:
    played.begin()
    return played.step(played.choose(random))


def test_collecting_fills_the_replay_with_what_happened(env: PixelEnv) -> None:
    replay = Replay(None, 100, 2)
    played = collector(env, replay)
    random = np.random.default_rng(0)
    ends = [step(played, random) for _ in range(30)]
    assert [frames for frames, _ in ends] == [2] * 30
    assert [index for index, (_, total) in enumerate(ends) if total is not None] == [24]  # 50 frames an episode
    assert played.episode == 1
    assert len(played.actions) == 5
    assert len(replay) == 30

    twin = make_env(TASK)  # the same episode by hand
    twin.reset(seed=episode_seed(1, TRAIN, 0, 0, 0))  # run seed, purpose, stage, lane, episode
    draws = np.random.default_rng(0)
    total = sum(twin.step(draws.uniform(-1, 1, 2).astype(np.float32))[1] for _ in range(25))
    assert ends[24][1] == total


def test_a_cut_episode_is_valued_beyond_its_end(env: PixelEnv) -> None:
    """A cut is a time limit: the state at it has a future, and the next episode starts elsewhere."""
    replay = Replay(None, 100, 2)
    played = collector(env, replay, longest=9)
    ends = [step(played, None) for _ in range(12)]
    assert [index for index, (_, total) in enumerate(ends) if total is not None] == [4, 9]  # 10 frames reach 9
    assert played.episode == 2
    assert (replay.sample(np.random.default_rng(0), 64, discount=0.9).discount == 0.9).all()

    twin_env, twin_replay = make_env(TASK), Replay(None, 100, 2)
    twin_replay.begin(np.zeros((84, 84, 3), np.uint8))
    twin = collector(twin_env, twin_replay, longest=9)
    twin.reopen(played.episode, np.array(played.actions))
    rest = [[step(each, None)[1] for _ in range(3)] for each in (played, twin)]
    assert rest[0] == rest[1]
    assert rest[0][2] is not None
    twin_env.close()


def test_reopening_stands_where_the_actions_led_and_adds_nothing(env: PixelEnv) -> None:
    replay = Replay(None, 100, 2)
    original = collector(env, replay)
    for _ in range(32):
        step(original, None)
    twin_env, twin_replay = make_env(TASK), Replay(None, 100, 2)
    twin = collector(twin_env, twin_replay)
    twin.reopen(original.episode, np.array(original.actions))
    assert len(twin_replay) == 0
    assert twin.fingerprint() == original.fingerprint()
    assert twin.episode_return == original.episode_return
    assert len(twin.actions) == len(original.actions) == 7


def test_reopening_between_two_episodes_opens_none(env: PixelEnv) -> None:
    played = collector(env, Replay(None, 100, 2))
    played.reopen(3, np.zeros((0, 2), np.float32))
    assert played.episode == 3
    assert played.fingerprint() is None


def test_an_episode_that_ends_while_reopening_cannot_be_resumed(env: PixelEnv) -> None:
    with pytest.raises(RunError, match="does not repeat itself"):
        collector(env, Replay(None, 100, 2)).reopen(0, np.zeros((30, 2), np.float32))


class Broken:
    """A simulator's wrapper that spoils one thing."""

    def __init__(self, env: PixelEnv, reward: float | None = None, dtype: Any = np.uint8) -> None:
        self._env, self._reward, self._dtype = env, reward, dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: NDArray[np.float32]) -> tuple[Any, ...]:
        pixels, reward, *rest = self._env.step(action)
        return (pixels.astype(self._dtype), reward if self._reward is None else self._reward, *rest)


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"reward": float("inf")}, "reward inf"),
        ({"reward": float("nan")}, "reward nan"),
        ({"dtype": np.float32}, "pixels"),
    ],
)
def test_a_bad_reward_or_picture_is_refused_before_the_replay_sees_it(
    env: PixelEnv, spoilt: dict[str, Any], message: str
) -> None:
    replay = Replay(None, 100, 2)
    spoilt_collector = collector(Broken(env, **spoilt), replay)  # type: ignore[arg-type]
    spoilt_collector.begin()
    action = spoilt_collector.choose(None)
    with pytest.raises(NonFiniteError, match=message):
        spoilt_collector.step(action)
    assert len(replay) == 0


def test_a_video_shows_the_episode(env: PixelEnv, tmp_path: Path) -> None:
    import imageio_ffmpeg

    path = tmp_path / "videos" / "reach.mp4"
    score = record_video(Scripted(), env, TASK, 1, path)
    assert score > 0
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == 26  # the first picture and one per step


def test_a_film_replaces_what_lies_in_its_place_and_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    for name in ("film.mp4", ".tmp-film.mp4"):
        (tmp_path / name).symlink_to(precious)
    with film(tmp_path / "film.mp4", 16) as show:
        show(np.zeros((16, 16, 3), np.uint8))
    assert precious.read_bytes() == b"precious"
    assert not (tmp_path / "film.mp4").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.mp4", "precious"]
