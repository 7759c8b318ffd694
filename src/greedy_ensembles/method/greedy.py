"""The paper's coupling: earlier members in a log-sum-exp (Section 4.1, the term of Algorithm 2's line 10).

Member k of M adds to its loss

    log sum_{j<k} exp(-(lambda_M / M) * E_{x ~ p*} ||s(z_k(x)) - s(z_j(x))||^2),

the negative marginal gain, under reverse KL, of adding a kernel at z_k to the mixture of the kernels at z_j. It is
largest, log(k - 1), where member k repeats all earlier ones, and falls as member k moves away from the nearest of them.
"""

from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.method.coupling import Coupling


def diversity_term(outputs: Tensor, earlier: Tensor, strength: float, size: int) -> Tensor:
    """Return ``log sum_j exp(-(strength / size) * mean_n ||outputs - earlier_j||^2)``; 0 without earlier members.

    Args:
        outputs: (n, classes), the member's probabilities on n samples of p*; gradients flow through these.
        earlier: (k - 1, n, classes), the earlier members' probabilities on the same samples.
        strength: lambda_M of the paper.
        size: M, the size that the ensemble will have.

    >>> one = torch.tensor([[1.0, 0.0]])
    >>> other = torch.tensor([[[0.0, 1.0]]])
    >>> diversity_term(one, other, strength=3.0, size=2).item()  # -(3/2) * ((1-0)^2 + (0-1)^2)
    -3.0
    """
    if outputs.ndim != 2 or earlier.ndim != 3 or earlier.shape[1:] != outputs.shape:
        raise ValueError(
            "diversity_term needs outputs of shape (n, classes) and earlier of shape (k - 1, n, classes) "
            f"with the same n and classes; got {tuple(outputs.shape)} and {tuple(earlier.shape)}"
        )
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if not strength >= 0:
        raise ValueError(f"strength must be at least 0, got {strength}")
    if len(earlier) == 0:
        return outputs.sum() * 0  # with a graph, so that a loop need not treat its first member apart
    if outputs.dtype in (torch.float16, torch.bfloat16):
        outputs, earlier = outputs.float(), earlier.float()
    squared_distances = (outputs - earlier).square().sum(dim=2).mean(dim=1)
    return torch.logsumexp(-(strength / size) * squared_distances, dim=0)


class Greedy(Coupling):
    """Member k is repelled from the kernel mixture of members 1..k-1."""

    def term(self, outputs: Tensor, others: Tensor) -> Tensor:
        """Return the diversity term of a member with these outputs on p* against those of the earlier members."""
        return diversity_term(outputs, others, self.strength, self.size)

    def terms(self, outputs: Tensor, others: Tensor) -> Tensor:
        """Return the terms of members that train together: row after row of one matrix of distances."""
        scale = self.strength / self.size / outputs.shape[1]
        return _Terms.apply(outputs.flatten(1), others.flatten(1), scale)  # type: ignore[no-any-return, no-untyped-call]


class _Terms(torch.autograd.Function):
    """Row by row ``log sum_j exp(-scale * ||own - met_j||^2)``, where a row meets all others and the rows before it.

    The gradient is in closed form, ``2 * scale * (sum_j weight_j met_j - own)`` with the softmax of the exponents as
    weights: a fraction of the operations that autograd would start, which is what the time of small members goes into.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, others: Tensor, scale: float) -> Tensor:
        """Return the terms (rows,)."""
        met = torch.cat([others, own])
        distances = torch.cdist(own, met, compute_mode="donot_use_mm_for_euclid_dist")
        unmet = torch.full_like(distances, -torch.inf).triu_(len(others))
        if len(others) == 0:  # the first meets itself, at distance 0: no term and no gradient; without anyone, NaN
            unmet[0, 0] = 0
        exponents = unmet.sub_(distances.square_(), alpha=scale)
        ctx.save_for_backward(own, met, exponents.softmax(dim=1))
        ctx.scale = scale
        return exponents.logsumexp(dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of `own`; those that are met stand still."""
        own, met, weights = ctx.saved_tensors
        return torch.addmm(own, weights, met, beta=-1).mul_(2 * ctx.scale * gradient.unsqueeze(1)), None, None
