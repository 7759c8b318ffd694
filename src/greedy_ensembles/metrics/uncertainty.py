"""Uncertainty of an ensemble's predictions, in nats (Appendix B.3), and other scores of them.

    total      H[mean_m p_m]              predictive entropy
    aleatoric  mean_m H[p_m]              expected entropy
    epistemic  their difference, >= 0     mutual information of label and member

All take probabilities (`energy`: logits) of shape (members, n, classes), as a tensor or an array, and return the same
kind of shape (n,). Entropies, mutual information and divergences also take independent labels, (members, n, labels, 2),
and sum over them. A higher value means more OOD, but for `max_probability`. All is computed in double precision,
because the mutual information of confident members is a small difference of large numbers, and returned in the input's
precision (single where the input is half).

Two scores need no probabilities, but features: how far they lie from those of labelled in-domain examples, the
reference. Features are of shape (n, d), those of the reference (m, d), tensors or arrays of one network. The result is
of shape (n,), of the kind of `features` and in double precision; a larger distance means more OOD.
"""

from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from greedy_ensembles.checks import check_count
from greedy_ensembles.metrics.values import (
    Array,
    Values,
    check_finite,
    check_floating,
    check_labels,
    check_probabilities,
    describe,
    like,
    to_tensor,
)

#: What smaller probabilities count as in a Kullback-Leibler divergence, which would be infinite at 0.
FLOOR = 1e-300
_ELEMENTS = 1 << 24  # of distances in memory at a time


def _of_members(name: str, values: Tensor | np.ndarray, labels: bool = False) -> Tensor:
    tensor = to_tensor(name, values)
    several = labels and tensor.ndim == 4
    shape = "(members, n, labels, 2)" if several else "(members, n, classes)"
    check_floating(name, tensor, shape)
    if 0 in (tensor.shape[0], *tensor.shape[2:]) or (several and tensor.shape[3] != 2):
        raise ValueError(f"{name} of shape {shape} must hold a member and a class, got {describe(tensor)}")
    return tensor.double()


def _probabilities(probs: Tensor | np.ndarray, labels: bool = True) -> Tensor:
    tensor = _of_members("probs", probs, labels)
    check_probabilities("probs", tensor)
    return tensor


def _scores(values: Tensor, probs: Array) -> Array:
    """Return values (n,), or the sums of (n, labels), as `probs` were given."""
    given = to_tensor("probs", probs).dtype
    values = values.sum(dim=1) if values.ndim == 2 else values
    return like(values.to(torch.float64 if given == torch.float64 else torch.float32), probs)


def _entropy(probs: Tensor) -> Tensor:
    entropies: Tensor = torch.special.entr(probs).sum(dim=-1)
    return entropies


def predictive_entropy(probs: Array) -> Array:
    """Return the entropy of the mean prediction, H[mean_m p_m].

    >>> predictive_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # log 2
    tensor([0.6931])
    """
    return _scores(_entropy(_probabilities(probs).mean(dim=0)), probs)


def expected_entropy(probs: Array) -> Array:
    """Return the mean entropy of the members' predictions, mean_m H[p_m].

    >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))  # log(2) / 2
    tensor([0.3466])
    """
    return _scores(_entropy(_probabilities(probs)).mean(dim=0), probs)


def mutual_information(probs: Array) -> Array:
    """Return H[mean_m p_m] - mean_m H[p_m]: how much the members disagree.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # certain, and of two minds
    tensor([0.6931])
    >>> mutual_information(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))  # uncertain, and of one mind
    tensor([0.])
    >>> mutual_information(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]], [[[0.0, 1.0], [0.0, 1.0]]]]))  # on two labels
    tensor([1.3863])
    """
    tensor = _probabilities(probs)
    total, aleatoric = _entropy(tensor.mean(dim=0)), _entropy(tensor).mean(dim=0)
    return _scores((total - aleatoric).clamp_min(0), probs)


def mean_pairwise_kl(probs: Array) -> Array:
    """Return the mean of KL(p_i || p_j) over all ordered pairs of different members; 0 for one member.

    Probabilities below 1e-300 count as that, so that the result stays finite where a member is certain.

    >>> mean_pairwise_kl(torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]))  # (log(4/3) / 2 + log(27/16) / 4) / 2
    tensor([0.1373])
    """
    tensor = _probabilities(probs)
    members, logs = len(tensor), tensor.clamp_min(FLOOR).log()
    # Of all pairs at once, i = j adding nothing: M sum_i p_i log p_i - (sum_i p_i) (sum_j log p_j).
    summed = members * (tensor * logs).sum(dim=0) - tensor.sum(dim=0) * logs.sum(dim=0)
    return _scores(summed.sum(dim=-1).clamp_min(0) / max(members * (members - 1), 1), probs)


def max_probability(probs: Array) -> Array:
    """Return the largest probability of the mean prediction: the confidence. As a score it is taken negative.

    >>> max_probability(torch.tensor([[[0.75, 0.25]], [[0.25, 0.75]]]))
    tensor([0.5000])
    """
    return _scores(_probabilities(probs, labels=False).mean(dim=0).amax(dim=-1), probs)


def energy(logits: Array) -> Array:
    """Return the free energy at temperature 1, the mean over members of -log sum_c exp(z_c) (Liu et al. 2020).

    >>> energy(torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]]))  # -(log 2 + (1 + log 2)) / 2
    tensor([-1.1931])
    """
    tensor = _of_members("logits", logits)
    check_finite("logits", tensor, "(members, n, classes)")
    return _scores(-tensor.logsumexp(dim=-1).mean(dim=0), logits)


class Uncertainty(NamedTuple, Generic[Array]):
    """Uncertainty of n predictions in nats, each of shape (n,): total = epistemic + aleatoric."""

    epistemic: Array  #: mutual information: members disagree; high far from the training data
    aleatoric: Array  #: expected entropy: members agree that the label is noisy
    total: Array  #: predictive entropy

    @classmethod
    def of(cls, probs: Array) -> "Uncertainty[Array]":
        """Return the uncertainty of members' probabilities, as the kind of array they are."""
        return Uncertainty(mutual_information(probs), expected_entropy(probs), predictive_entropy(probs))


def _features(features: Values, reference: Values) -> tuple[Tensor, Tensor]:
    own, known = to_tensor("features", features), to_tensor("reference", reference)
    for name, tensor in (("features", own), ("reference", known)):
        check_finite(name, tensor, "(n, d)")
    if own.shape[1] != known.shape[1] or not known.numel():
        raise ValueError(f"reference must hold features of {own.shape[1]} values, got {describe(known)}")
    return own.double(), known.to(own.device).double()


def knn_distance(features: Array, reference: Values, k: int = 50) -> Array:
    """Return the distance to the k-th nearest of the reference, all features scaled to length 1 (Sun et al. 2022).

    Args:
        features: of the examples in question.
        reference: of in-domain examples, at least `k`; an example that is itself among them is its own nearest.
        k: how many neighbours an in-domain example is expected to have.

    >>> knn_distance(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]), k=2)
    tensor([1.4142], dtype=torch.float64)
    """
    check_count("k", k, least=1)
    own, known = _features(features, reference)
    if k > len(known):
        raise ValueError(f"k must be at most the {len(known)} examples of the reference, got {k}")
    own, known = normalize(own, dim=1), normalize(known, dim=1)
    parts = own.split(max(_ELEMENTS // len(known), 1))
    return like(torch.cat([torch.cdist(part, known).kthvalue(k, dim=1).values for part in parts]), features)


def mahalanobis_distance(features: Array, reference: Values, labels: Values) -> Array:
    """Return the squared Mahalanobis distance to the nearest class mean, all classes sharing a covariance.

    Lee et al. 2018: the covariance is that of the reference around the means of its classes, with n below the fraction.
    Directions in which the reference does not vary have no say, by the pseudo-inverse.

    Args:
        features: of the examples in question.
        reference: of labelled in-domain examples.
        labels: of these, whole numbers of shape (m,).

    >>> line = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])  # two classes at 0 and 10, of variance 1
    >>> mahalanobis_distance(torch.tensor([[4.0]]), line, torch.tensor([0, 0, 1, 1]))
    tensor([16.], dtype=torch.float64)
    """
    own, known = _features(features, reference)
    classes = to_tensor("labels", labels).to(own.device)
    check_labels(classes, len(known))
    _, numbers = classes.unique(return_inverse=True)
    members = one_hot(numbers).double()
    means = members.T @ known / members.sum(dim=0)[:, None]
    around = known - means[numbers]
    precision = torch.linalg.pinv(around.T @ around / len(known), hermitian=True)
    gaps = ((own - mean) for mean in means)
    return like(torch.stack([((gap @ precision) * gap).sum(dim=1) for gap in gaps]).amin(dim=0), features)
