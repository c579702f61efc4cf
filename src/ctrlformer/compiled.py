"""Python loops over arrays, compiled to machine code."""

from __future__ import annotations

from collections.abc import Callable

import numba


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Machine code that lets other threads run, kept on disk for the next process where some folder allows it."""
    try:
        kernel: Callable[..., None] = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # numba found neither the package nor the home writable
        kernel = numba.njit(function, nogil=True)
    return kernel
