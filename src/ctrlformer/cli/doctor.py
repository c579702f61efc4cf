"""`ctrlformer doctor`: can this machine train, and if not, what fixes it?

Whatever can take a process down (a broken OpenGL driver, a processor that refuses bf16) is tried in a
child process, so the doctor survives to say so.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ctrlformer.envs.gl import BACKENDS, FIX
from ctrlformer.system.memory import free_memory

PACKAGES = ("torch", "dm-control", "mujoco", "gymnasium", "numpy", "numba", "safetensors")
OPTIONAL_PACKAGES = ("tensorboard", "wandb", "ray")
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
CHILD_SECONDS = 180
LOW_BYTES = 4 * 2**30  # a full replay takes 2.6 GB of memory and of disk

# Prints {"backend", "fingerprint", "milliseconds"}; an argument allows one backend only.
GL_CHILD = """
import json, sys, time
from ctrlformer.envs import gl, make_env, pixel_fingerprint
if len(sys.argv) > 1:
    gl.BACKENDS = {sys.argv[1]: gl.BACKENDS[sys.argv[1]]}
backend, fingerprint = gl.use_backend(), pixel_fingerprint()
env = make_env("cartpole_swingup")
env.reset(seed=0)
env.render(84)
start = time.perf_counter()
for _ in range(20):
    env.render(84)
milliseconds = (time.perf_counter() - start) / 20 * 1e3
env.close()
print(json.dumps({"backend": backend, "fingerprint": fingerprint, "milliseconds": milliseconds}))
"""

# Prints {"gflops", "gpu"} for the torch type in its argument.
PRECISION_CHILD = """
import json, sys, time, torch
a = torch.ones(512, 512, dtype=getattr(torch, sys.argv[1]))
for _ in range(2):
    b = a @ a
start = time.perf_counter()
for _ in range(5):
    b = a @ a
gflops = 5 * 2 * 512**3 / (time.perf_counter() - start) / 1e9
assert float(b[0, 0]) == 512.0
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"gflops": gflops, "gpu": gpu}))
"""


class Answer(NamedTuple):
    """What a child process printed, or why it failed (empty when it did not)."""

    values: Mapping[str, object]
    failure: str = ""


def run_doctor(print: Callable[[str], None]) -> int:
    """Examine the machine, line by line; 0 means ready, 2 that the last line names the fix."""
    fixes = [*_packages(print)]
    _machine(print)
    fixes += _drawing(print)
    fixes += _computing(print)
    print(f"fix: {fixes[0]}" if fixes else "ready")
    return 2 if fixes else 0


def ask_child(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Answer:
    """Run Python `code` in a child process; its last line of output is JSON."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer({}, f"no answer within {CHILD_SECONDS} s")
    if child.returncode < 0:
        return Answer({}, f"died with {signal.Signals(-child.returncode).name}")
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        return Answer({}, lines[-1])
    return Answer(json.loads(child.stdout.splitlines()[-1]))


def _packages(print: Callable[[str], None]) -> list[str]:
    print(_line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"))
    missing = []
    for name in ("ctrlformer", *PACKAGES, *OPTIONAL_PACKAGES):
        version = _version(name)
        print(_line(name, version or ("not installed (optional)" if name in OPTIONAL_PACKAGES else "not installed")))
        if version is None and name in PACKAGES:
            missing.append(name)
    return [f"pip install {' '.join(missing)}"] if missing else []


def _machine(print: Callable[[str], None]) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(_line("cores", str(cores)))
    memory = free_memory()
    print(_line("memory", _amount(memory) if memory is not None else "unknown"))
    print(_line("disk", f"{_amount(shutil.disk_usage(Path.cwd()).free)} in {Path.cwd()}"))


def _drawing(print: Callable[[str], None]) -> list[str]:
    """Each OpenGL backend by itself, then the one that a training would take."""
    unforced = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    working = []
    for name in BACKENDS:
        answer = ask_child(GL_CHILD, name, environment=unforced)
        print(_line(f"GL {name}", _absent(answer.failure) if answer.failure else _drawn(answer)))
        if not answer.failure:
            working.append(name)
    chosen = ask_child(GL_CHILD)
    if not chosen.failure:
        print(_line("GL in use", str(chosen.values["backend"])))
        print(_line("pixel fingerprint", str(chosen.values["fingerprint"])))
        return []
    print(_line("GL in use", chosen.failure))
    if not working:
        return [FIX]
    if "MUJOCO_GL" in os.environ or "PYOPENGL_PLATFORM" in os.environ:
        return ["unset MUJOCO_GL PYOPENGL_PLATFORM"]
    return [f"export MUJOCO_GL={working[0].removesuffix('-wheel')}"]


def _computing(print: Callable[[str], None]) -> list[str]:
    """Each precision; only fp32 is needed."""
    fixes = []
    for name, dtype in PRECISIONS.items():
        answer = ask_child(PRECISION_CHILD, dtype)
        print(_line(name, answer.failure or f"{answer.values['gflops']:.0f} GFLOPS"))
        if name == "fp32":
            print(_line("GPU", str(answer.values.get("gpu") or "none")))
            if answer.failure:
                fixes.append("reinstall torch for this processor: pip install --force-reinstall torch")
    return fixes


def _line(name: str, value: str) -> str:
    return f"{name:<18} {value}"


def _drawn(answer: Answer) -> str:
    return f"{answer.values['milliseconds']:.1f} ms a frame, fingerprint {answer.values['fingerprint']}"


def _absent(failure: str) -> str:
    """The child's RenderError carries the fix, which the doctor says once, at its end."""
    return "not available" if "RenderError" in failure else failure


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _amount(free: int) -> str:
    low = "" if free >= LOW_BYTES else " (little: a full replay takes 2.6 GB)"
    return f"{free / 2**30:.1f} GB free{low}"
