"""What every test shares: one thread per process, and no test that needs the network."""

from __future__ import annotations

import os

# Before numpy or torch is imported: the tests run in several processes beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
