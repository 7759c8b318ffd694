"""Pure functions of predictions: uncertainty, and what it is worth."""

from greedy_ensembles.metrics.uncertainty import expected_entropy, mutual_information, predictive_entropy

__all__ = ["expected_entropy", "mutual_information", "predictive_entropy"]
