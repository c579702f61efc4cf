"""Memory: settings of the process that make numbers go faster, and what fits on a device."""

from __future__ import annotations

import ctypes
import os
import sys

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


def fits_on_device(needed: int, device: torch.device | str) -> bool:
    """Whether so many bytes can stay in the free memory of a GPU; never on a CPU, which has no memory of its own.

    >>> fits_on_device(1, "cpu")
    False
    """
    device = torch.device(device)
    return device.type == "cuda" and needed <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]
