"""A training of hours whose resident memory must not grow; `make soak` publishes its line.

    python tests/faults/soak.py HOURS OUT.jsonl

The training is small, so that hours see many episodes, evaluations, checkpoints and reports. What it prints goes to
this program's own output.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tally import SOAK, Tally

COMMAND = (
    "train cartpole_balance --preset tiny --frames 50000000 --agent.batch-size 16 --training.replay-capacity 2000"
    " --training.eval-every-frames 4000 --training.eval-episodes 1 --training.checkpoint-every-frames 8000"
    " --training.threads 1 --run"
)
EVERY = 10.0  # seconds between two looks
WARM_UP = WINDOW = 1 / 8  # of the time: what is left out, and what is averaged after it and at the end
MOST_GROWTH = 0.01


def main(hours: float, out: Path) -> None:
    tally = Tally("memory_growth", SOAK)
    with tempfile.TemporaryDirectory() as folder, tally.case("a long training"):
        run = Path(folder) / "run"
        sizes = watched([sys.executable, "-m", "ctrlformer", *COMMAND.split(), str(run)], 3600 * hours)
        before, after = compared(sizes)
        tally.figures[f"MB after warm-up and at the end of {hours:g} hours"] = (
            f"{before / 1e6:.1f} and {after / 1e6:.1f}"
        )
        evaluations = [json.loads(line) for line in (run / "evals.jsonl").read_text().splitlines()]
        tally.figures[f"frames and evaluations in {hours:g} hours"] = (
            f"{evaluations[-1]['frames']:,} and {len(evaluations)}"
        )
        assert after < (1 + MOST_GROWTH) * before
    tally.write(out)
    print(tally.figures)
    if tally.failures:
        sys.exit("\n".join(tally.failures))


def watched(command: list[str], seconds: float) -> list[int]:
    """Resident bytes of the command's process, one look after the other, until it has lasted so long."""
    sizes = []
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(EVERY)
            assert process.poll() is None, f"the training ended with {process.returncode}"
            sizes.append(resident_bytes(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return sizes


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def compared(sizes: list[int]) -> tuple[float, float]:
    """Medians right after the warm-up and at the end."""
    warm, window = (max(1, round(share * len(sizes))) for share in (WARM_UP, WINDOW))
    return statistics.median(sizes[warm : warm + window]), statistics.median(sizes[-window:])


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
