"""The files of the replay: restoring, old segments, positions that do not fit, a full disk."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_replays import SIZE, Episode, draw, episodes, play, same

from ctrlformer.errors import CheckpointError, RunError
from ctrlformer.replay import Replay


@settings(max_examples=30, deadline=None)
@given(
    before=episodes,
    after=episodes,
    more=episodes,
    capacity=st.integers(1, 60),
    frame_stack=st.integers(1, 4),
    frames_on_device=st.booleans(),
)
def test_restore_gives_the_content_at_the_flush_and_goes_on_alike(
    before: list[Episode],
    after: list[Episode],
    more: list[Episode],
    capacity: int,
    frame_stack: int,
    frames_on_device: bool,
) -> None:
    shape = (capacity, 1, SIZE, frame_stack)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        replay = Replay(folder, *shape)
        steps = play(replay, before, np.random.default_rng(1))
        position = replay.flush()
        expected = draw(replay) if len(replay) else None
        play(replay, after, np.random.default_rng(2))  # never part of the checkpoint
        replay.flush()
        restored = Replay.restore(folder, position, *shape, frames_on_device=frames_on_device)
        again = restored.flush()
        assert again == position
        assert same(draw(restored), expected) if expected else len(restored) == 0
        # The restored one, its files and a replay that never stopped all go the same way.
        memory = Replay(None, *shape)
        assert play(memory, before, np.random.default_rng(1)) == steps
        play(memory, more, np.random.default_rng(3))
        play(restored, more, np.random.default_rng(3))
        assert len(restored) == len(memory)
        final = Replay.restore(folder, restored.flush(), *shape)
        if len(memory):
            assert same(draw(restored), draw(memory))
            assert same(draw(final), draw(memory))


def test_an_open_episode_goes_on_after_restore(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE, 3), dtype=np.uint8)
    replays = [Replay(None, 10, 1, SIZE), Replay(tmp_path, 10, 1, SIZE)]
    for replay in replays:
        replay.begin(frames[0])
        for k in (1, 2, 3):
            replay.add(np.array([k]), 1.0, False, frames[k])
    replays[1] = Replay.restore(tmp_path, replays[1].flush(), 10, 1, SIZE)
    for replay in replays:
        replay.add(np.array([4]), 1.0, True, frames[4])
    assert same(draw(replays[0]), draw(replays[1]))
    with pytest.raises(RuntimeError, match="begin"):
        replays[1].add(np.array([5]), 1.0, False, frames[5])  # the episode is over


def test_old_segments_go_but_two_checkpoints_back_still_restores(tmp_path: Path) -> None:
    shape = (40, 1, SIZE, 3)
    replay = Replay(tmp_path, *shape)
    rng = np.random.default_rng(0)
    flushes = []
    for _ in range(20):
        play(replay, [Episode(15, False)], rng)
        flushes.append((replay.flush(), draw(replay)))
    # Ring (40), two flushes back (2 x 16) and parts of segments (16 each): far fewer than all 320 records.
    assert len(list(tmp_path.glob("*.seg"))) <= 8
    for back in (1, 2, 3):
        copy = tmp_path / f"copy{back}"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy*"))
        position, expected = flushes[-back]
        assert same(draw(Replay.restore(copy, position, *shape)), expected)


def test_a_new_replay_discards_what_its_folder_held(tmp_path: Path) -> None:
    play(old := Replay(tmp_path, 50, 1, SIZE), [Episode(40, False)], np.random.default_rng(0))
    old.flush()
    new = Replay(tmp_path, 50, 1, SIZE)
    assert not list(tmp_path.glob("*.seg"))
    assert len(Replay.restore(tmp_path, new.flush(), 50, 1, SIZE)) == 0


def test_a_position_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    replay = Replay(tmp_path, 30, 1, SIZE)
    play(replay, [Episode(50, False)], np.random.default_rng(0))
    position = replay.flush()
    wrong = [
        {},
        {"format": 2},
        {"capacity": 31},
        {"frames": -1},
        {"frames": True},
        {"frames": 2**70},
        {"frames": position["frames"] + 1},
        {"first": None},
        {"first": 0},
        {"steps": position["steps"] - 1},
        {"steps_at_first": position["oldest"] + 1},
        {"oldest": position["steps"] + 1},
        {"oldest": "0"},
    ]
    for change in wrong:
        with pytest.raises(CheckpointError):
            Replay.restore(tmp_path, {**position, **change} if change else {}, 30, 1, SIZE)
    assert len(Replay.restore(tmp_path, position, 30, 1, SIZE)) == 30  # all those tries have damaged nothing


def test_memory_only_has_no_position() -> None:
    assert Replay(None, 10, 1, SIZE).flush() == {}


def test_a_full_disk_refuses_the_step_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(tmp_path, 100, 1, SIZE)
    memory = Replay(None, 100, 1, SIZE)
    frames = np.random.default_rng(0).integers(0, 256, (60, SIZE, SIZE, 3), dtype=np.uint8)
    replay.begin(frames[0])
    memory.begin(frames[0])
    refused = []
    for k in range(1, 60):
        action = np.array([k])
        with monkeypatch.context() as patch:
            if k % 3:
                patch.setattr("ctrlformer.replay.segment_log.open_regular", no_space)
            try:
                replay.add(action, 1.0, False, frames[k])
            except RunError as error:
                refused.append(str(error))
                patch.undo()
                replay.add(action, 1.0, False, frames[k])  # once there is room again
        memory.add(action, 1.0, False, frames[k])
    assert refused
    assert all("No space left on device" in message for message in refused)
    with monkeypatch.context() as patch:
        patch.setattr("ctrlformer.replay.segment_log.open_regular", no_space)
        with pytest.raises(RunError, match="No space left"):
            replay.flush()
    assert same(draw(Replay.restore(tmp_path, replay.flush(), 100, 1, SIZE)), draw(memory))


def no_space(path: Path, flags: int) -> int:
    raise OSError(28, "No space left on device", str(path))
