"""Training: what `ge.fit` does, from its arguments to an ensemble."""

from greedy_ensembles.training.algorithm import NonFiniteLossError
from greedy_ensembles.training.events import Epoch, TensorBoard
from greedy_ensembles.training.examples import SplitError
from greedy_ensembles.training.fit import fit
from greedy_ensembles.training.recipe import Recipe

__all__ = ["Epoch", "NonFiniteLossError", "Recipe", "SplitError", "TensorBoard", "fit"]
