"""Process settings, and what fits on a device."""

import subprocess
import sys

import pytest
import torch

from ctrlformer.machine import fits_on_device


def test_freed_memory_is_kept() -> None:
    """A block freed and asked for again costs no new pages."""
    code = """
import resource, numpy
from ctrlformer.machine import keep_freed_memory
assert keep_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
numpy.ones(50_000_000, numpy.uint8)
before = faults()
for _ in range(5): numpy.ones(50_000_000, numpy.uint8)
print(faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5 * 50_000_000 / 4096 / 2, "five fresh blocks would fault twice as often"


def test_four_fifths_of_a_devices_free_memory_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def free_and_total(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 1000, 5000

    monkeypatch.setattr(torch.cuda, "mem_get_info", free_and_total)
    assert fits_on_device(800, "cuda:1")
    assert not fits_on_device(801, "cuda:1")
    assert asked == 2 * [torch.device("cuda:1")]
    assert not fits_on_device(0, "cpu")
