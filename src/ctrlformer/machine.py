"""Settings of the process that make numbers go faster."""

from __future__ import annotations

import ctypes
import sys

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
