"""Independent labels: each applies to an input or not, so that L of them are L problems of two classes.

A model has one logit z a label, (n, labels), and the label applies with probability sigmoid(z). Loss and distance are
means over labels, so that lambda_M and the learning rate mean the same however many there are. Entropies and mutual
information are sums. With one label, all of it would be what two classes have.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

#: What an input has: one of several classes, or any of several labels.
TARGETS = ("classes", "labels")


def label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy, the mean over examples and labels.

    Args:
        logits: (n, labels).
        targets: (n, labels) of 0 and 1, or (n, labels, 2): what the two outcomes, 0 and 1, weigh in an example.
    """
    if targets.ndim == 2:
        return binary_cross_entropy_with_logits(logits, targets)
    return -(targets * log_bernoulli(logits)).sum(dim=-1).mean()


def bernoulli(logits: Tensor) -> Tensor:
    """Return the probabilities that labels do not apply and that they do, (..., labels, 2).

    >>> bernoulli(torch.tensor([[0.0, 200.0]]))
    tensor([[[0.5000, 0.5000],
             [0.0000, 1.0000]]])
    """
    return torch.stack([-logits, logits], dim=-1).sigmoid()


def log_bernoulli(logits: Tensor) -> Tensor:
    """Return the logarithms of `bernoulli`, of which none is lost to rounding."""
    return logsigmoid(torch.stack([-logits, logits], dim=-1))


def _probabilities(logits: Tensor) -> Tensor:
    # (1 - p, p) and (1 - q, q) are 2 (p - q)^2 apart, squared; the root of L makes a mean of the sum over labels.
    scaled: Tensor = logits.sigmoid() * (2 / logits.shape[1]) ** 0.5
    return scaled


#: How the distance between members sees their logits. The paper's figures belong to probabilities of classes.
DISTANCES: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "classes": {"probabilities": lambda logits: logits.softmax(dim=1), "logits": lambda logits: logits},
    "labels": {"probabilities": _probabilities, "logits": lambda logits: logits / logits.shape[1] ** 0.5},
}
