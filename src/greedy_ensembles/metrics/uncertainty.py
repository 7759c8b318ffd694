"""Uncertainty of an ensemble's predictions, in nats (Appendix B.3).

    total      H[mean_m p_m]              predictive entropy
    aleatoric  mean_m H[p_m]              expected entropy
    epistemic  their difference, >= 0     mutual information of label and member

All take probabilities of shape (members, n, classes), as a tensor or an array, and return the same kind of shape (n,).
Entropies are computed in double precision, because the mutual information of confident members is a small difference
of large numbers, and returned in the input's precision (single where the input is half).
"""

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.metrics.values import Array, check_floating, check_probabilities, describe, to_tensor


def _probabilities(probs: Tensor | np.ndarray) -> Tensor:
    tensor = to_tensor("probs", probs)
    check_floating("probs", tensor, "(members, n, classes)")
    if 0 in (tensor.shape[0], tensor.shape[2]):
        raise ValueError(f"probs of shape (members, n, classes) must hold a member and a class, got {describe(tensor)}")
    tensor = tensor.double()
    check_probabilities("probs", tensor)
    return tensor


def _like(values: Tensor, probs: Array) -> Array:
    given = to_tensor("probs", probs).dtype
    values = values.to(torch.float64 if given == torch.float64 else torch.float32)
    return values.numpy() if isinstance(probs, np.ndarray) else values


def _entropy(probs: Tensor) -> Tensor:
    entropies: Tensor = torch.special.entr(probs).sum(dim=-1)
    return entropies


def _total(probs: Tensor) -> Tensor:
    return _entropy(probs.mean(dim=0))


def _aleatoric(probs: Tensor) -> Tensor:
    return _entropy(probs).mean(dim=0)


def predictive_entropy(probs: Array) -> Array:
    """Return the entropy of the mean prediction, H[mean_m p_m].

    >>> predictive_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # log 2
    tensor([0.6931])
    """
    return _like(_total(_probabilities(probs)), probs)


def expected_entropy(probs: Array) -> Array:
    """Return the mean entropy of the members' predictions, mean_m H[p_m].

    >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))  # log(2) / 2
    tensor([0.3466])
    """
    return _like(_aleatoric(_probabilities(probs)), probs)


def mutual_information(probs: Array) -> Array:
    """Return H[mean_m p_m] - mean_m H[p_m]: how much the members disagree.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # certain, and of two minds
    tensor([0.6931])
    >>> mutual_information(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))  # uncertain, and of one mind
    tensor([0.])
    """
    tensor = _probabilities(probs)
    return _like((_total(tensor) - _aleatoric(tensor)).clamp_min(0), probs)
