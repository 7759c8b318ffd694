"""Function-space repulsion with a kernel density estimate (D'Angelo & Fortuin 2021, "Repulsive Deep Ensembles").

Their update of member i ascends ``log p(f_i | data)`` and descends ``log sum_j k(f_i, f_j)`` over all members j, itself
included, where the gradient is of the first argument alone. So member i adds to its loss

    strength * log sum_j exp(-d_ij / h),    d_ij = E_{x ~ p*} ||s(z_i(x)) - s(z_j(x))||^2.

The loss here is a mean over N examples and theirs is a sum, so that their factor is strength = 1 / N. Larger ones repel
more than their posterior does. The bandwidth h is the median of all d_ij (i < j), the lower one of two, over log M,
without gradient, unless it is given.
"""

import math

import torch
from torch import Tensor

from greedy_ensembles.checks import check_number
from greedy_ensembles.method.coupling import Coupling


class Repulsive(Coupling):
    """All members repel each other; they have to train together.

    Args:
        bandwidth: h; None: the median heuristic, anew at every step.
    """

    label = "repulsive"
    sees = "all"

    def __init__(self, bandwidth: float | None = None) -> None:
        if bandwidth is not None:
            check_number("bandwidth", bandwidth, above=0)
        self.bandwidth = bandwidth

    def terms(self, live: Tensor, bank: Tensor) -> Tensor:
        """Return the scaled logarithms of the kernel density at every member; 0 where there is one alone."""
        everyone = torch.cat([bank, live.detach()])
        if len(everyone) < 2:
            return live.sum(dim=(1, 2)) * 0
        bandwidth = self._bandwidth(everyone)
        terms = []
        for i, own in enumerate(live):
            others = self.met(live, bank, i)
            squared = (own - others).square().sum(dim=2).mean(dim=1)
            itself = squared.new_zeros(1)  # k(f, f) = 1, whose gradient is 0
            terms.append(torch.logsumexp(torch.cat([itself, -squared / bandwidth]), dim=0))
        return self.strength * torch.stack(terms)

    def _bandwidth(self, everyone: Tensor) -> Tensor:
        if self.bandwidth is not None:
            return everyone.new_full((), self.bandwidth)
        squared = torch.pdist(everyone.flatten(1)).square() / everyone.shape[1]
        heuristic = squared.median() / math.log(len(everyone))
        return heuristic.clamp(min=torch.finfo(heuristic.dtype).tiny)  # members that are all alike have no median
