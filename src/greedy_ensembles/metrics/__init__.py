"""Pure functions of predictions: uncertainty, and what it is worth."""

from greedy_ensembles.metrics.quality import (
    accuracy,
    adaptive_calibration_error,
    auroc,
    average_precision,
    balanced_threshold,
    brier_score,
    expected_calibration_error,
    fpr_at_tpr,
    negative_log_likelihood,
    precision_recall_curve,
    roc_curve,
)
from greedy_ensembles.metrics.uncertainty import (
    energy,
    expected_entropy,
    knn_distance,
    mahalanobis_distance,
    max_probability,
    mean_pairwise_kl,
    mutual_information,
    predictive_entropy,
)

__all__ = [
    "accuracy",
    "adaptive_calibration_error",
    "auroc",
    "average_precision",
    "balanced_threshold",
    "brier_score",
    "energy",
    "expected_calibration_error",
    "expected_entropy",
    "fpr_at_tpr",
    "knn_distance",
    "mahalanobis_distance",
    "max_probability",
    "mean_pairwise_kl",
    "mutual_information",
    "negative_log_likelihood",
    "precision_recall_curve",
    "predictive_entropy",
    "roc_curve",
]
