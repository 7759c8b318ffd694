"""The paper's log-sum-exp at every sample of p*, then the mean: no sample can hide behind the others.

Member k of M adds ``E_{x ~ p*} log sum_{j<k} exp(-(lambda_M / M) * ||s(z_k(x)) - s(z_j(x))||^2)`` to its loss. The
paper takes the mean inside the exponent, so that a member is far from another once it differs from it on some samples.
Here every sample asks for it anew: two members that agree on half of p* are close there, however far apart elsewhere.
By Jensen's inequality, of a log-sum-exp, the term is at least as large as the paper's, and equal for one sample.
"""

import torch
from torch import Tensor

from greedy_ensembles.method.coupling import Coupling


class Pointwise(Coupling):
    """Member k is repelled from the kernel mixture of members 1..k-1 at every sample by itself."""

    label = "pointwise"

    def terms(self, live: Tensor, bank: Tensor) -> Tensor:
        """Return the means over samples; 0 for a member that meets no one."""
        return torch.stack([self._term(own, self.met(live, bank, i)) for i, own in enumerate(live)])

    def _term(self, own: Tensor, met: Tensor) -> Tensor:
        if len(met) == 0:
            return own.sum() * 0
        squared = (own - met).square().sum(dim=2)
        return torch.logsumexp(-(self.strength / self.size) * squared, dim=0).mean()
