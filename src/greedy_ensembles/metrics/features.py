"""How far features lie from those of labelled in-domain examples, the reference: two scores that need no probabilities.

Features are of shape (n, d), those of the reference (m, d), tensors or arrays of one network. The result is of shape
(n,) and of the kind of `features`; a larger distance means more OOD. All is computed in double precision.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from greedy_ensembles.checks import check_count
from greedy_ensembles.metrics.values import Array, Values, check_floating, describe, to_tensor

_ELEMENTS = 1 << 24  # of distances in memory at a time


def _checked(features: Values, reference: Values) -> tuple[Tensor, Tensor]:
    own, known = to_tensor("features", features), to_tensor("reference", reference)
    for name, tensor in (("features", own), ("reference", known)):
        check_floating(name, tensor, "(n, d)")
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite, got {int((~tensor.isfinite()).sum())} that are infinite or NaN")
    if own.shape[1] != known.shape[1] or not known.numel():
        raise ValueError(f"reference must hold features of {own.shape[1]} values, got {describe(known)}")
    return own.double(), known.to(own.device).double()


def _like(distances: Tensor, features: Array) -> Array:
    return distances if isinstance(features, Tensor) else distances.numpy()


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
    own, known = _checked(features, reference)
    if k > len(known):
        raise ValueError(f"k must be at most the {len(known)} examples of the reference, got {k}")
    own, known = normalize(own, dim=1), normalize(known, dim=1)
    parts = own.split(max(_ELEMENTS // len(known), 1))
    return _like(torch.cat([torch.cdist(part, known).kthvalue(k, dim=1).values for part in parts]), features)


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
    own, known = _checked(features, reference)
    classes = to_tensor("labels", labels).to(own.device)
    if classes.shape != known.shape[:1] or classes.is_floating_point() or classes.is_complex():
        raise ValueError(f"labels must be whole numbers of shape ({len(known)},), got {describe(classes)}")
    _, numbers = classes.unique(return_inverse=True)
    members = torch.nn.functional.one_hot(numbers).double()
    means = members.T @ known / members.sum(dim=0)[:, None]
    around = known - means[numbers]
    precision = torch.linalg.pinv(around.T @ around / len(known), hermitian=True)
    gaps = ((own - mean) for mean in means)
    return _like(torch.stack([((gap @ precision) * gap).sum(dim=1) for gap in gaps]).amin(dim=0), features)
