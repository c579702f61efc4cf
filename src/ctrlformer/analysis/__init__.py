"""Scores, forgetting and transfer of finished runs, from their logs alone: without torch."""
