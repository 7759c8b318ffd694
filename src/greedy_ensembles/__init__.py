"""Ensembles whose members cover the posterior, and know when not to trust a prediction.

>>> import torch
>>> import greedy_ensembles as ge
>>> x, y = torch.randn(200, 2), torch.arange(200) % 2
>>> recipe = ge.Recipe(epochs=1)
>>> ensemble = ge.fit(lambda: ge.models.MLP(2), (x, y), size=2, strength=1.0, recipe=recipe, progress=False)
>>> probs = ensemble.predict_proba(x)
>>> probs.shape, ge.metrics.mutual_information(probs).shape
(torch.Size([2, 200, 2]), torch.Size([200]))
"""

from typing import TYPE_CHECKING, Any

from greedy_ensembles import benchmark, data, metrics, models, theory
from greedy_ensembles.ensemble import Ensemble, Uncertainty
from greedy_ensembles.method import diversity_term, frozen_batchnorm, split_batchnorm, weighting
from greedy_ensembles.storage import FolderError
from greedy_ensembles.training import Epoch, NonFiniteLossError, Recipe, Run, TensorBoard, fit, load_run
from greedy_ensembles.version import __version__

if TYPE_CHECKING:
    from greedy_ensembles.estimator import GreedyEnsembleClassifier

__all__ = [
    "Ensemble",
    "Epoch",
    "FolderError",
    "GreedyEnsembleClassifier",
    "NonFiniteLossError",
    "Recipe",
    "Run",
    "TensorBoard",
    "Uncertainty",
    "__version__",
    "benchmark",
    "data",
    "diversity_term",
    "fit",
    "frozen_batchnorm",
    "load_run",
    "metrics",
    "models",
    "split_batchnorm",
    "theory",
    "weighting",
]


def __getattr__(name: str) -> Any:
    """Import the estimator when it is first asked for: scikit-learn is as slow to import as torch."""
    if name == "GreedyEnsembleClassifier":
        from greedy_ensembles.estimator import GreedyEnsembleClassifier

        return GreedyEnsembleClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
