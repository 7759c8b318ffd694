"""Labels of examples: of several classes one, or independent ones, of which any may apply.

L independent labels are L problems of two classes. A model has one logit z a label, (n, labels), and the label applies
with probability sigmoid(z). Loss and distance are means over labels, so that lambda_M and the learning rate mean the
same however many there are. Entropies and mutual information are sums. With one label, all of it would be what two
classes have.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from greedy_ensembles.checks import check_unmasked

#: What an input has: one of several classes, or any of several labels.
TARGETS = ("classes", "labels")
#: Entries of a dict that are labels, and no inputs.
LABELS = ("labels", "label")


def split_labels(item: Any, message: str) -> tuple[Any, Any]:
    """Return inputs and labels of an item or a batch, a pair or a dict with labels in it; else raise `message`."""
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item), None)
        if name is not None and len(item) > 1:
            return {key: value for key, value in item.items() if key != name}, item[name]
    elif isinstance(item, list | tuple) and len(item) == 2:
        return item[0], item[1]
    parts = f" of {len(item)}" if isinstance(item, list | tuple) else ""
    raise TypeError(
        f"{message} is a {type(item).__name__}{parts}; wrap data in a Dataset that returns these two of each item, or "
        "a dict with 'labels' in it"
    )


def as_labels(y: Any, data: str = "data", targets: str = "classes") -> Tensor:
    """Return class indices (n,), or 0 and 1 (n, labels), as int64 on the CPU, or refuse them."""
    name = "labels" if data == "data" else f"labels of {data}"
    check_unmasked(name, y)
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if targets == "labels":
        return _as_independent(array, name)
    kind = array.dtype.kind
    whole = kind != "f" or np.array_equal(array, np.round(array))
    one_hot = array.ndim == 2 and array.shape[1] > 1 and kind in "iufb"
    if array.ndim != 1 and (whole or one_hot):
        remedy = ": y.reshape(-1) has it" if array.ndim == 2 else ""
        if one_hot:
            remedy = ": if they are one-hot, give y.argmax(1); independent labels are for ge.fit(..., targets='labels')"
        raise ValueError(f"{name} must have shape (n,), one class index an example; got {array.shape}{remedy}")
    if kind not in "iu" or array.ndim != 1:
        remedy = "np.unique(y, return_inverse=True)[1] numbers classes; ge.GreedyEnsembleClassifier takes any labels"
        if not whole:
            remedy = "These are no classes, and regression is not done here; np.digitize sorts numbers into ranges"
        elif kind in "fb":
            remedy = "Convert them, as y.long() does of tensors and y.astype(int) of arrays"
        raise TypeError(f"{name} must be whole numbers 0, 1, 2, ...; got {array.dtype}. {remedy}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name} must not be negative, got {array.min()}")
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must be class indices 0, 1, 2, ...; got {array.max()}")
    return torch.from_numpy(array.astype(np.int64))


def _as_independent(array: np.ndarray, name: str) -> Tensor:
    """Return 0 and 1, whether each label applies, or refuse them."""
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(
            f"{name} must have shape (n, labels), two labels or more, for targets='labels'; got {array.shape}. One "
            "label is two classes: give them as (n,), without targets"
        )
    if array.dtype.kind not in "iufb" or not bool(((array == 0) | (array == 1)).all()):
        raise ValueError(f"{name} must be 0 and 1 for targets='labels', whether each label applies")
    return torch.from_numpy(array.astype(np.int64))


def label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits (n, labels), the mean over examples and labels.

    Targets are 0 and 1, (n, labels), or (n, labels, 2): what the two outcomes weigh in an example.
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
