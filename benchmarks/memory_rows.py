"""How much memory a whole training takes, in a process of its own: `python -m benchmarks.memory_rows`."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.experience import add_episode, episodes
from benchmarks.table import Effort, Sample, SpeedComparison
from ctrlformer.config import Config
from ctrlformer.config.presets import preset
from ctrlformer.envs.tasks import action_repeat
from ctrlformer.errors import RunError
from ctrlformer.replay import Replay
from ctrlformer.storage.files import JSON
from ctrlformer.storage.run_folder import RunFolder
from ctrlformer.system.memory import keep_freed_memory
from ctrlformer.training.callbacks import Callback
from ctrlformer.training.signals import StopRequest
from ctrlformer.training.stage import StageOpener
from ctrlformer.training.trainer import Trainer

TASK = "cartpole_swingup"
LIMIT = 4.0  # GB
SEED_STEPS, LEARNT_STEPS = 10, 30
GIGABYTE = 1e9


def training_memory(_: Effort) -> SpeedComparison:
    child = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=False)
    if child.returncode:
        raise RunError(f"the training whose memory was to be measured failed: {child.stderr.strip().splitlines()[-1]}")
    note = (
        f"peak resident memory of a compact training of {TASK} in its own process: {LEARNT_STEPS} learnt steps, an"
        f" evaluation and a checkpoint beside a replay filled with {preset('compact').training.replay_capacity:,}"
        " transitions; the reference is the limit"
    )
    return SpeedComparison(Sample.of([float(child.stdout)]), Sample.of([LIMIT]), "GB", note)


class FullReplays(StageOpener):
    """Stages whose replays are full of made-up steps from the start, and not written to disk."""

    def replay(self, task: str, action_dim: int, saved: Mapping[str, JSON] | None) -> Replay:
        capacity = preset("compact").training.replay_capacity
        size = preset("compact").env.image_size
        replay = Replay(None, capacity, action_dim, size)
        episode = episodes(1000, size)[0]
        while len(replay) < capacity - len(episode.action):
            add_episode(replay, episode)
        return replay


class FullReplayTrainer(Trainer):
    def __init__(self, run: RunFolder, callbacks: Sequence[Callback], stop: StopRequest) -> None:
        super().__init__(run, callbacks, stop)
        self._opener = FullReplays(run, self.agent, self._say)


def short_config() -> Config:
    config = preset("compact")
    frames = (SEED_STEPS + LEARNT_STEPS) * action_repeat(TASK)
    settings = dataclasses.replace(
        config.training, frames=frames, seed_steps=SEED_STEPS, eval_episodes=1, final_episodes=1
    )
    return dataclasses.replace(config, tasks=(TASK,), training=settings)


def main() -> None:
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop:
        run = RunFolder.create(Path(folder, "run"), short_config())
        FullReplayTrainer(run, [], stop).learn()
    print(peak_bytes() / GIGABYTE)


def peak_bytes() -> int:
    """Linux's high-water mark of this program alone: getrusage's also knows the process that started it."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
