"""What this machine computes with: the device, the precision, and whether torch can compile."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable

import torch

from ctrlformer.config import Precision
from ctrlformer.errors import ConfigError

# A product of matrices in both precisions, in a process of its own: a processor or driver that claims bf16 and
# cannot do it may end the process, and the answer is "bf16" only if it is clearly the faster.
PROBE = """
import sys, time, torch
device = sys.argv[1]
def seconds(dtype):
    a = torch.ones(1024, 1024, device=device, dtype=dtype)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        value = float((a @ a)[0, 0])
        times.append(time.perf_counter() - started)
    assert value == 1024
    return min(times)
print("bf16" if seconds(torch.bfloat16) < 0.8 * seconds(torch.float32) else "fp32")
"""
PROBE_SECONDS = 60


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one; anything else must be a device that torch has here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        float(torch.zeros(1, device=name))  # a device that holds no numbers, such as meta, fails here
        return torch.device(name)
    except (RuntimeError, AssertionError, ValueError, ImportError) as error:
        why = (str(error).splitlines() or ["unknown"])[0]
        raise ConfigError(f"training.device {name!r} cannot be used here: {why}; try auto or cpu") from None


@functools.cache
def choose_precision(wanted: Precision, device: torch.device) -> Precision:
    """`auto` is bf16 where a probe finds it faster than fp32, which rules out most CPUs."""
    if wanted != "auto":
        return wanted
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "fp32"  # no such instructions: nothing to probe
    return probed_precision(str(device))


def probed_precision(device: str, probe: str = PROBE) -> Precision:
    """What the probe says, or fp32 if it ends in any other way."""
    try:
        words = [sys.executable, "-c", probe, device]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "fp32"
    return "bf16" if answer.strip() == "bf16" else "fp32"


def use_compiler(wanted: str, device: torch.device, say: Callable[[str], None]) -> bool:
    """Whether to compile: if asked to, or on a GPU, and where it works; where it does not, `say` so."""
    if wanted == "off" or (wanted == "auto" and device.type == "cpu"):
        return False
    trouble = compiler_trouble(device)
    if trouble is not None:
        say(f"torch.compile does not work here ({trouble}): continuing without it, more slowly")
    return trouble is None


def compiler_trouble(device: torch.device) -> str | None:
    """Why `torch.compile` does not work here, in a few words; none if it does. Takes some seconds."""
    try:
        compiled = torch.compile(_double)
        compiled(torch.ones(8, device=device))
    except (RuntimeError, OSError, ImportError) as error:  # a missing or broken compiler; torch's own are RuntimeErrors
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
    return None


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2
