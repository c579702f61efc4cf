"""One self-contained HTML page of any set of runs, from their folders alone: without torch."""
