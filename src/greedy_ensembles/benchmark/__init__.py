"""The OOD benchmark, the comparison of methods over seeds and with the paper, and the choice of lambda_M."""

from greedy_ensembles.benchmark.comparison import Comparison, Method
from greedy_ensembles.benchmark.evaluation import Detection, Estimate, Evaluation, InDomain, OutOfDistribution, estimate
from greedy_ensembles.benchmark.judging import SCORES, evaluate, judge, judge_probabilities, judge_scores, scores_of
from greedy_ensembles.benchmark.packing import PackedPredictions, pack_predictions, unpack_predictions
from greedy_ensembles.benchmark.predictions import Predictions, predict
from greedy_ensembles.benchmark.presets import PRESETS, load_preset
from greedy_ensembles.benchmark.runs import Published, RunFacts
from greedy_ensembles.benchmark.selection import Selection, Trial

__all__ = [
    "PRESETS",
    "SCORES",
    "Comparison",
    "Detection",
    "Estimate",
    "Evaluation",
    "InDomain",
    "Method",
    "OutOfDistribution",
    "PackedPredictions",
    "Predictions",
    "Published",
    "RunFacts",
    "Selection",
    "Trial",
    "estimate",
    "evaluate",
    "judge",
    "judge_probabilities",
    "judge_scores",
    "load_preset",
    "pack_predictions",
    "predict",
    "scores_of",
    "unpack_predictions",
]
