"""The training loop and what surrounds it: launching, collecting, evaluating, logging, resuming."""
