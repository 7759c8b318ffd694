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

import importlib
from typing import TYPE_CHECKING, Any

from greedy_ensembles.machine import __version__

if TYPE_CHECKING:
    from greedy_ensembles import benchmark, data, metrics, models, theory
    from greedy_ensembles.benchmark.selection import select
    from greedy_ensembles.checks import limits
    from greedy_ensembles.engines.coupler import Coupler
    from greedy_ensembles.ensemble import Ensemble
    from greedy_ensembles.estimator import GreedyEnsembleClassifier
    from greedy_ensembles.flags import Calibration
    from greedy_ensembles.method import Coupling, diversity_term, frozen_batchnorm, split_batchnorm, weighting
    from greedy_ensembles.metrics.uncertainty import Uncertainty
    from greedy_ensembles.report.compare import compare
    from greedy_ensembles.runs import Run, load_run
    from greedy_ensembles.storage import FolderError
    from greedy_ensembles.sweeps.sweep import Sweep, sweep
    from greedy_ensembles.training import Epoch, NonFiniteLossError, Recipe, TensorBoard
    from greedy_ensembles.training.fit import fit  # from where it is: the module is called the same, and mypy stumbles

__all__ = [
    "Calibration",
    "Coupler",
    "Coupling",
    "Ensemble",
    "Epoch",
    "FolderError",
    "GreedyEnsembleClassifier",
    "NonFiniteLossError",
    "Recipe",
    "Run",
    "Sweep",
    "TensorBoard",
    "Uncertainty",
    "__version__",
    "benchmark",
    "compare",
    "data",
    "diversity_term",
    "fit",
    "frozen_batchnorm",
    "limits",
    "load_run",
    "metrics",
    "models",
    "select",
    "split_batchnorm",
    "sweep",
    "theory",
    "weighting",
]

#: Where each public name is; what is not here is a module itself.
_HOMES = {
    "benchmark.selection": ("select",),
    "checks": ("limits",),
    "engines.coupler": ("Coupler",),
    "ensemble": ("Ensemble",),
    "estimator": ("GreedyEnsembleClassifier",),
    "flags": ("Calibration",),
    "method": ("Coupling", "diversity_term", "frozen_batchnorm", "split_batchnorm", "weighting"),
    "metrics.uncertainty": ("Uncertainty",),
    "report.compare": ("compare",),
    "runs": ("Run", "load_run"),
    "storage": ("FolderError",),
    "sweeps.sweep": ("Sweep", "sweep"),
    "training": ("Epoch", "NonFiniteLossError", "Recipe", "TensorBoard", "fit"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: torch takes seconds, which `--help` need not wait for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    module = importlib.import_module(f"{__name__}.{home or name}")
    found = globals()[name] = getattr(module, name) if home else module
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
