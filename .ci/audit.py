"""Looks up the pinned versions in the public list of vulnerabilities; fails only when it finds one.

Where pip-audit or its list cannot be reached, one line says so and that is all.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
LONGEST = 300  # seconds


def main() -> int:
    if not importlib.util.find_spec("pip_audit") and _run("pip", "install", "--quiet", "pip-audit>=2.9") != 0:
        print("audit skipped: pip-audit cannot be installed here")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        # Every version is pinned, so nothing has to be resolved or downloaded.
        _run("pip_audit", "-r", str(CONSTRAINTS), "--no-deps", "--disable-pip", "-f", "json", "-o", str(found))
        packages = json.loads(found.read_text())["dependencies"] if found.exists() else []
    return _tell([package for package in packages if "skip_reason" not in package], len(packages))


def _tell(looked_up: list[dict], pinned: int) -> int:
    if not looked_up:
        print("audit skipped: the list of vulnerabilities cannot be reached from here")
        return 0
    known = [(package, one) for package in looked_up for one in package["vulns"]]
    for package, one in known:
        mended = ", ".join(one["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {one['id']}, mended in {mended}")
    print(f"audit: {len(known)} known vulnerabilities in the {len(looked_up)} of {pinned} versions that are listed")
    return 1 if known else 0


def _run(*words: str) -> int:
    try:
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LONGEST).returncode
    except subprocess.TimeoutExpired:
        return 1


if __name__ == "__main__":
    sys.exit(main())
