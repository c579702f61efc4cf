"""A replay used for long: memory stays what it was after warm-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tally import HowMany, Tally

BATCH, SIZE = 50, 12
# Adds and samples as many steps as it is told, in episodes of 100, flushed now and then as checkpoints do.
SCRIPT = f"""
import json, resource, sys
from pathlib import Path
import numpy as np
from ctrlformer.replay.buffer import Replay

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

total, folder = int(sys.argv[1]), Path(sys.argv[2])
replay = Replay(folder, capacity=2000, action_dim=2, image_size={SIZE})
rng = np.random.default_rng(0)
frames = rng.integers(0, 256, (64, {SIZE}, {SIZE}, 3), np.uint8)
action, sampled, warm = np.zeros(2, np.float32), 0, 0
for step in range(total):
    if step % 100 == 0:
        replay.begin(frames[step % 64])
    replay.add(action, 1.0, step % 100 == 99, frames[step % 64])
    if step % {BATCH} == {BATCH} - 1:
        sampled += len(replay.sample(rng, {BATCH}, n_step=3, shift=2).reward)
    if step % 5000 == 4999:
        replay.flush()
    if step == total // 5:
        warm = resident()
print(json.dumps({{"sampled": sampled, "warm": warm, "end": resident()}}))
"""


@pytest.mark.fault("memory_growth")
def test_a_million_adds_and_samples(tally: Tally, how_many: HowMany, tmp_path: Path) -> None:
    total = how_many(20_000, 1_000_000)
    words = [sys.executable, "-c", SCRIPT, str(total), str(tmp_path / "replay")]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    with tally.case(f"{total} adds and samples"):
        assert found["sampled"] == total
        assert found["end"] < 1.01 * found["warm"], found
    tally.figures["replay: adds and samples"] = f"{total:,}"
    tally.figures["MB at warm-up"] = round(found["warm"] / 1e6, 1)
    tally.figures["MB at the end"] = round(found["end"] / 1e6, 1)
