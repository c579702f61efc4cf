"""The machine: devices, precision and memory."""
