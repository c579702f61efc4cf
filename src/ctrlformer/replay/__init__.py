"""Experience to learn from: the replay buffer of a task, and the rehearsal buffer of finished ones."""

from ctrlformer.replay.buffer import Batch, Replay, Sequences, ring_bytes

__all__ = [
    "Batch",
    "Replay",
    "Sequences",
    "ring_bytes",
]
