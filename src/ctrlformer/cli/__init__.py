"""The command line: one class per command, its fields the flags."""
