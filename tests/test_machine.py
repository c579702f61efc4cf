"""Process settings."""

import subprocess
import sys


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
