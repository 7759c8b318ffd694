"""Runs on disk: the folder that training survives in, and reading it back."""

from greedy_ensembles.runs.reading import Run, load_run

__all__ = ["Run", "load_run"]
