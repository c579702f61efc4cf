"""Process settings, and what fits in memory and on a device."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ctrlformer.system.memory import fits_on_device, free_memory


def test_freed_memory_is_kept() -> None:
    """A block freed and asked for again costs no new pages."""
    code = """
import resource, numpy
from ctrlformer.system.memory import keep_freed_memory
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


def system(root: Path, **files: str) -> Path:
    """A made-up system's files: `proc__meminfo` is proc/meminfo."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("memory_", "memory.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n"


def test_free_memory_is_what_the_machine_has_left(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    assert free_memory(system(tmp_path, proc__meminfo=MEMINFO)) == 4000 * 1024


def test_a_containers_limit_counts_and_what_it_caches_of_files_is_free(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__memory_max="50000\n",
        sys__fs__cgroup__a__memory_current="20000\n",
        sys__fs__cgroup__a__memory_stat="anon 1\ninactive_file 5000\n",
        sys__fs__cgroup__a__b__memory_max="max\n",
        sys__fs__cgroup__a__b__memory_current="20000\n",
    )
    assert free_memory(root) == 35000


def test_older_control_groups_are_read_too(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="5:memory:/a\n2:cpu,cpuacct:/\n",
        sys__fs__cgroup__memory__a__memory_limit_in_bytes="300\n",
        sys__fs__cgroup__memory__a__memory_usage_in_bytes="1000\n",
    )
    assert free_memory(root) == 0


def test_this_system_says_how_much_is_free() -> None:
    free = free_memory()
    assert free is not None
    assert free > 1 << 20
