"""Training: the recipe of a member, when members train, and the folder that a run survives in."""

from greedy_ensembles.training.events import Epoch
from greedy_ensembles.training.fit import fit
from greedy_ensembles.training.load import Run, load_run
from greedy_ensembles.training.problem import SplitError
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.schedule import NonFiniteLossError
from greedy_ensembles.training.tensorboard import TensorBoard

__all__ = ["Epoch", "NonFiniteLossError", "Recipe", "Run", "SplitError", "TensorBoard", "fit", "load_run"]
