"""The paper's coupling: earlier members in a log-sum-exp (Section 4.1, the term of Algorithm 2's line 10).

Member k of M adds to its loss

    log sum_{j<k} exp(-(lambda_M / M) * E_{x ~ p*} ||s(z_k(x)) - s(z_j(x))||^2),

the negative marginal gain, under reverse KL, of adding a kernel at z_k to the mixture of the kernels at z_j. It is
largest, log(k - 1), where member k repeats all earlier ones, and falls as member k moves away from the nearest of them.
"""

import torch
from torch import Tensor

from greedy_ensembles.checks import check_count, check_kind, check_number
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
    for name, value in (("outputs", outputs), ("earlier", earlier)):
        check_kind(name, value, Tensor, "a tensor of probabilities")
        if not value.is_floating_point():
            raise TypeError(f"{name} must be a tensor of probabilities, got {value.dtype}")
    if outputs.ndim != 2 or earlier.ndim != 3 or earlier.shape[1:] != outputs.shape:
        raise ValueError(
            "diversity_term needs outputs of shape (n, classes) and earlier of shape (k - 1, n, classes) "
            f"with the same n and classes; got {tuple(outputs.shape)} and {tuple(earlier.shape)}"
        )
    check_count("size", size, least=1)
    check_number("strength", strength, least=0.0)
    if len(earlier) == 0:
        return outputs.sum() * 0  # with a graph, so that a loop need not treat its first member apart
    if outputs.dtype in (torch.float16, torch.bfloat16):
        outputs, earlier = outputs.float(), earlier.float()
    squared_distances = (outputs - earlier).square().sum(dim=2).mean(dim=1)
    return torch.logsumexp(-(strength / size) * squared_distances, dim=0)


_LARGEST = 1e18  # of outputs: from there on, squares leave single precision


class Greedy(Coupling):
    """Member k is repelled from the kernel mixture of members 1..k-1."""

    label = "greedy"

    def terms(self, live: Tensor, bank: Tensor) -> Tensor:
        """Return the diversity terms, rows of one matrix of distances; 0 for a member that meets no one."""
        first = 0 if len(bank) else 1
        if len(live) == first:
            return live.sum(dim=(1, 2)) * 0
        # All that the last row meets, of which row i meets the first len(bank) + i. What is not met has no weight, and
        # must not have a gradient that is infinite either: 0 * inf would let a later member break an earlier one. So
        # outputs are bounded, and distances that are not met are left out before they, or the strength, overflow.
        met = self.met(live, bank, len(live) - 1).nan_to_num(0.0).clamp(-_LARGEST, _LARGEST)
        unmet = torch.ones(len(live), len(met), dtype=torch.bool, device=live.device).triu(len(bank))
        distances = torch.cdist(live.flatten(1), met.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
        distances = distances.masked_fill(unmet, 0.0)
        exponents = -(self.strength / self.size / live.shape[1]) * distances.square()
        terms = exponents.masked_fill(unmet, -torch.inf)[first:].logsumexp(dim=1)
        return torch.cat([live[:first].sum(dim=(1, 2)) * 0, terms])
