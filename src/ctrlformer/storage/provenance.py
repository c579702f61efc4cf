"""Where a run comes from: the machine, package versions, command line and git commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from ctrlformer.storage.files import JSON


def describe_machine() -> dict[str, JSON]:
    packages = ("ctrlformer", "torch", "numpy", "numba", "dm-control", "mujoco", "gymnasium", "safetensors")
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def command_line() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def source_commit() -> str | None:
    """The source's git commit, with `-dirty` when files were changed since; none outside a checkout."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    describe = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
