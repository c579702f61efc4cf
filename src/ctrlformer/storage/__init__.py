"""What is written to disk: safe file operations, run folders and checkpoints."""
