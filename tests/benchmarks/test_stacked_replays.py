"""Every replay of the speed table holds and shows the same steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.experience import ACTIONS, EPISODE_STEPS, episodes, filled_replay, transitions
from benchmarks.peers import sb3_replay, torchrl_replay
from benchmarks.stacked_replays import PAD, Draw, StackedReplay, array_bytes, shifted, shifted_views
from ctrlformer.replay import ring_bytes

STEPS = EPISODE_STEPS + 5  # two episodes


@pytest.fixture(scope="module")
def known() -> dict[bytes, bytes]:
    """Every observation with the one after it."""
    return {step.observation.tobytes(): step.next_observation.tobytes() for step in transitions(STEPS)}


def test_stacks_repeat_the_first_frame_and_stay_in_their_episode() -> None:
    steps = list(transitions(STEPS))
    assert len(steps) == STEPS
    first = episodes(STEPS)[1].frames[0].transpose(2, 0, 1)
    start = steps[EPISODE_STEPS]
    assert np.array_equal(start.observation, np.concatenate([first] * 3))
    assert np.array_equal(start.next_observation[:6], np.concatenate([first] * 2))
    assert np.array_equal(steps[7].observation[3:], steps[8].observation[:6])


def test_our_replay_shows_the_same_observations(known: dict[bytes, bytes]) -> None:
    batch = filled_replay(STEPS).sample(np.random.default_rng(0), 20, shift=0, views=1, next_views=1)
    now, after = (
        torch.as_tensor(pixels)[0].permute(0, 3, 1, 2).numpy() for pixels in (batch.observation, batch.next_observation)
    )
    for observation, following in zip(now, after, strict=True):
        assert known[observation.tobytes()] == following.tobytes()


def check_draw(draw: Draw, known: dict[bytes, bytes]) -> None:
    now, after = draw(20)
    assert now.shape == (20, 9, 84, 84)
    assert now.dtype == torch.uint8
    for observation, following in zip(now.numpy(), after.numpy(), strict=True):
        assert known[observation.tobytes()] == following.tobytes()


def test_drqs_pattern_shows_the_same_observations(known: dict[bytes, bytes]) -> None:
    check_draw(StackedReplay(STEPS).draw, known)


def test_stable_baselines3_shows_the_same_observations(known: dict[bytes, bytes]) -> None:
    pytest.importorskip("stable_baselines3")
    replay = sb3_replay(STEPS)
    check_draw(replay.draw, known)
    assert replay.bytes > 2 * 9 * 84 * 84 * STEPS


def test_torchrl_shows_the_same_observations(known: dict[bytes, bytes]) -> None:
    pytest.importorskip("torchrl")
    replay = torchrl_replay(STEPS)
    check_draw(replay.draw, known)
    assert replay.bytes > 2 * 9 * 84 * 84 * STEPS


def test_shifts_are_windows_of_the_padded_picture() -> None:
    rows = torch.arange(20.0)[:, None] * 100 + torch.arange(20.0)  # every pixel tells its place
    moved = shifted(rows.expand(200, 1, 20, 20))
    assert moved.shape == (200, 1, 20, 20)
    corners = {(int(value) // 100 - 10, int(value) % 100 - 10) for value in moved[:, 0, 10, 10]}
    assert {abs(offset) for corner in corners for offset in corner} == set(range(PAD + 1))
    assert float(moved.min()) == 0.0  # an edge is repeated, not black


def test_a_batch_has_two_float_views_of_both_observations() -> None:
    views = shifted_views(StackedReplay(20).draw, 3)
    assert [(view.shape, view.dtype) for view in views] == [((3, 9, 84, 84), torch.float32)] * 4
    assert not torch.equal(views[0], views[1])


def test_bytes_of_our_replay_are_those_it_says_it_takes() -> None:
    assert array_bytes(filled_replay(STEPS)) == pytest.approx(ring_bytes(STEPS, ACTIONS), rel=1e-3)


def test_an_array_under_two_names_counts_once() -> None:
    class Holder:
        pass

    holder = Holder()
    numbers = np.zeros(10, np.uint8)
    vars(holder).update(first=numbers, second=torch.from_numpy(numbers), other=torch.zeros(3), word="x")
    assert array_bytes(holder) == 10 + 12
