"""Section 2's view of ensembles as sets: risks of members, and why plain pairwise diversity is no good.

Problem (1) asks for small R(Z) - Omega(Z), with R the risk of the mean prediction. For a convex loss Jensen's
inequality bounds R by the mean risk of the members, problem (3), which for a fixed M is modular. What remains is
Omega, and the obvious choice, the sum over pairs of squared distances, has *increasing* returns: the further members
are apart, the more another distant one is worth. Its maximiser runs to the extremes of the ground set.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from greedy_ensembles.theory.arrays import Array, floats, same_length
from greedy_ensembles.theory.set_function import SetFunction

Loss = Callable[[Array, Array], Array]  #: of predictions and targets, elementwise


class MeanMemberRisk(SetFunction):
    """-(1/M) sum_{m in Z} R(z_m), negated because larger is better: modular, since M is fixed.

    Args:
        outputs: (n, examples), the predictions of each function of the ground set.
        targets: (examples,).
        loss: of predictions and targets, elementwise; the bound needs it to be convex in the predictions.
        size: M.
    """

    def __init__(self, outputs: ArrayLike, targets: ArrayLike, loss: Loss, size: int) -> None:
        outputs, targets = _with_targets(outputs, targets)
        super().__init__(len(outputs), size)
        self.risks = loss(outputs, targets).mean(axis=1)

    def __call__(self, indices: Sequence[int]) -> float:
        """Return minus the mean risk of the members."""
        return -float(self.risks[self.checked(indices)].sum()) / self.size


def ensemble_risk(outputs: ArrayLike, targets: ArrayLike, loss: Loss) -> float:
    """Return R(Z) = (1/N) sum_i loss(mean_m z_m(x_i), y_i) for the (M, examples) predictions of an ensemble."""
    outputs, targets = _with_targets(outputs, targets)
    return float(loss(outputs.mean(axis=0), targets).mean())


def _with_targets(outputs: ArrayLike, targets: ArrayLike) -> tuple[Array, Array]:
    predictions, wanted = floats("outputs", outputs, 2), floats("targets", targets, 1)
    same_length("targets", wanted, "outputs", predictions)
    return predictions, wanted


class PairwiseDiversity(SetFunction):
    """Omega(Z) = strength * sum over ordered pairs of |z_i - z_j|^2: supermodular.

    Args:
        points: (n,) or (n, d), the functions of the ground set as vectors.
        size: M.
        strength: lambda_M.

    >>> F = PairwiseDiversity([-3.0, 0.0, 1.0], size=2)
    >>> F([0, 2]), F([1, 2])
    (32.0, 2.0)
    """

    def __init__(self, points: ArrayLike, size: int, strength: float = 1.0) -> None:
        array = np.asarray(points)
        self.points = floats("points", array[:, np.newaxis] if array.ndim == 1 else array, 2)
        self.strength = strength
        super().__init__(len(self.points), size)

    def __call__(self, indices: Sequence[int]) -> float:
        """Return the diversity of a set."""
        chosen = self.points[self.checked(indices)]
        differences = chosen[:, np.newaxis] - chosen
        return self.strength * float((differences**2).sum())
