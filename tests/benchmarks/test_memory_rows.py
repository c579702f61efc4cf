"""The memory of a training is that of its own process."""

import subprocess
import sys

import numpy as np


def test_the_peak_does_not_count_the_process_that_started_it() -> None:
    """getrusage's figure outlives an exec, so a large parent would be told of its child."""
    held = np.ones(2 * 10**9, np.uint8)
    code = "from benchmarks import memory_rows; print(memory_rows.peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 10**8 < int(child.stdout) < held.size
