"""Dreamer: a world model, and actors that learn in what it imagines."""
