"""Training: what `ge.fit` does, from its arguments to an ensemble."""

from greedy_ensembles.training.algorithm import NonFiniteLossError
from greedy_ensembles.training.events import Epoch, TensorBoard
from greedy_ensembles.training.fit import fit
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.validate import SplitError

__all__ = ["Epoch", "NonFiniteLossError", "Recipe", "SplitError", "TensorBoard", "fit"]
