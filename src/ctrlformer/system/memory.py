"""Memory: settings of the process that make numbers go faster, and what fits on a device."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DEVICE_SHARE = 0.8  # of a device's free memory; the rest is for networks and batches
# glibc's mallopt names (malloc.h)
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory instead of giving it back to the kernel; False where there is no glibc.

    An update allocates and frees hundreds of megabytes. By default each large block comes fresh from the
    kernel and is zeroed page by page, which takes longer than the arithmetic done in it.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    return all(
        mallopt(name, value) for name, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1))
    )


def memory_bytes() -> int:
    """All of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: what the machine has left, or a container's limit if that is less.

    None where the system does not say. `root` is for tests.
    """
    free = [left for left in (_machine_left(root), *_container_left(root)) if left is not None]
    return min(free, default=None)


def _machine_left(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(rest.split()[0])
    return None


def _container_left(root: Path) -> Iterator[int | None]:
    """What the control groups of this process leave it: cgroup v2 (`0::/group`) and v1 (`5:memory:/group`)."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, group = line.split(":", 2)
        if number == "0":
            place, limit, used = "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            place, limit, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = root / place
        for part in ("", *group.strip("/").split("/")):  # a limit of a group above holds as well
            folder = folder / part
            yield _left(folder, limit, used)


def _left(folder: Path, limit: str, used: str) -> int | None:
    numbers = [_number(folder / limit), _number(folder / used)]
    if numbers[0] is None or numbers[1] is None:
        return None
    cached = sum(int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith("inactive_file "))
    return max(0, numbers[0] - numbers[1] + cached)  # what is cached of files goes when memory is needed


def _number(path: Path) -> int | None:
    text = "".join(_lines(path))
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def fits_on_device(needed: int, device: torch.device | str) -> bool:
    """Whether so many bytes can stay in the free memory of a GPU; never on a CPU, which has no memory of its own.

    >>> fits_on_device(1, "cpu")
    False
    """
    import torch  # here, because the rest of this module serves those who do without

    device = torch.device(device)
    return device.type == "cuda" and needed <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
