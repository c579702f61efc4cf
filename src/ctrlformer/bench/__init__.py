"""Measurements: what an encoder can see, and (side by side) how fast things are."""
