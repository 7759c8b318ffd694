"""Plain pairwise diversity, the naive term of Figure 1b: reward the mean distance to the members one meets.

Member k of M adds ``-(lambda_M / M) * mean_j E_{x ~ p*} ||s(z_k(x)) - s(z_j(x))||^2`` to its loss. The mean lets two
members coincide as long as others are far away, which the log-sum-exp of the paper does not.
"""

import torch
from torch import Tensor

from greedy_ensembles.method.coupling import Coupling


class Pairwise(Coupling):
    """Member k moves away from the mean of members 1..k-1."""

    label = "pairwise"

    def terms(self, live: Tensor, bank: Tensor) -> Tensor:
        """Return minus the scaled mean squared distances; 0 for a member that meets no one."""
        return torch.stack([self._term(own, self.met(live, bank, i)) for i, own in enumerate(live)])

    def _term(self, own: Tensor, met: Tensor) -> Tensor:
        if len(met) == 0:
            return own.sum() * 0
        return -(self.strength / self.size) * (own - met).square().sum(dim=2).mean()
