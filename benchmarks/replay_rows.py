"""Drawing a batch under two shifts, and the memory a replay takes."""

from __future__ import annotations

import numpy as np

from benchmarks.experience import filled_replay
from benchmarks.peers import sb3_replay, torchrl_replay
from benchmarks.stacked_replays import VIEWS, Draw, StackedReplay, array_bytes, shifted_views
from benchmarks.table import Effort, Sample, SpeedComparison, alternate

BATCH = 512
MEMORY_STEPS = 1000
WHOLE_STEPS = 100_000
GIGABYTE = 1e9


def sample_drq(effort: Effort) -> SpeedComparison:
    return _sample_beside(StackedReplay(effort.transitions).draw, "DrQ's pattern", effort)


def sample_sb3(effort: Effort) -> SpeedComparison:
    return _sample_beside(sb3_replay(effort.transitions).draw, "stable-baselines3's ReplayBuffer", effort)


def sample_torchrl(effort: Effort) -> SpeedComparison:
    return _sample_beside(torchrl_replay(effort.transitions).draw, "torchrl's TensorDictReplayBuffer", effort)


def memory_drq(_: Effort) -> SpeedComparison:
    return _memory_beside(array_bytes(StackedReplay(MEMORY_STEPS)), "DrQ's pattern")


def memory_sb3(_: Effort) -> SpeedComparison:
    return _memory_beside(sb3_replay(MEMORY_STEPS).bytes, "stable-baselines3's ReplayBuffer")


def memory_torchrl(_: Effort) -> SpeedComparison:
    return _memory_beside(torchrl_replay(MEMORY_STEPS).bytes, "torchrl's TensorDictReplayBuffer")


def _sample_beside(draw: Draw, whose: str, effort: Effort) -> SpeedComparison:
    replay, rng = filled_replay(effort.transitions), np.random.default_rng(0)
    ours, reference = alternate(
        lambda: replay.sample(rng, BATCH, views=VIEWS, next_views=VIEWS),
        lambda: shifted_views(draw, BATCH),
        2 * effort.repeats,
    )
    note = (
        f"batch {BATCH}, two shifts of s and of s', {effort.transitions} transitions; {whose} with the shifts its user"
        " adds, as floats; ours gives bytes, which the encoder reads"
    )
    return SpeedComparison(ours, reference, "s", note)


def _memory_beside(reference: int, whose: str) -> SpeedComparison:
    scale = WHOLE_STEPS / MEMORY_STEPS / GIGABYTE
    ours = array_bytes(filled_replay(MEMORY_STEPS))
    note = f"{WHOLE_STEPS} transitions, scaled from the arrays of a full replay of {MEMORY_STEPS}; {whose}"
    return SpeedComparison(Sample.of([ours * scale]), Sample.of([reference * scale]), "GB", note)
