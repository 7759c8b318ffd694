"""What an ensemble is evaluated on: image sets, arrays, tables, tokens and Datasets, each under a name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from greedy_ensembles.data import ImageSet, LabelledSet
from greedy_ensembles.data.image_set import Labels
from greedy_ensembles.inputs import as_inputs, as_tensor, entries
from greedy_ensembles.storage import digest_of_tensor
from greedy_ensembles.training.examples import as_examples

#: What tables call in-domain data that have no name.
IN_DOMAIN = "in-domain"


@dataclass(frozen=True, eq=False)
class InputSet:
    """Inputs of any kind, as `Ensemble.predict_proba` takes them."""

    name: str
    x: Any
    labels: Labels | None = None  #: (n,)
    note: str = ""  #: what a reader of any figure on this set must know, else empty
    unit: str = "examples"  #: what is counted

    @classmethod
    def of(cls, argument: str, data: Any, name: str = "", labelled: bool = False) -> "InputSet":
        """Return data under a name, sets of ge.data under their own where none is given; or refuse it.

        Args:
            argument: what messages call it.
            data: inputs, or where they are labelled what `ge.fit` takes.
            name: what tables call it.
            labelled: whether labels are needed.
        """
        if isinstance(data, InputSet):
            return data
        if isinstance(data, LabelledSet):
            if labelled and data.labels is None:
                raise ValueError(f"{data.name} has no labels; accuracy and calibration in the domain need them")
            return cls(name or data.name, data.inputs, data.labels, data.note, data.unit)
        try:
            if not labelled:
                return cls(name, as_inputs(data))
            labels = as_examples(data, argument).labels.cpu().numpy()
            return cls(name, as_inputs(data[0] if isinstance(data, list | tuple) else data), labels)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{argument}: {error}") from None

    @property
    def count(self) -> int:
        """How many inputs there are."""
        held: Any = self.x.dataset if isinstance(self.x, DataLoader) else self.x
        return len(entries(held)[0][1])

    @property
    def shape(self) -> tuple[int, ...] | None:
        """That of one input, None where nothing says it before it is read."""
        return tuple(self.x.shape[1:]) if isinstance(self.x, Tensor | np.ndarray) else None

    def digest(self) -> str:
        """Return a hash of the inputs, empty for those that are read one by one."""
        return digest_of_tensor(as_tensor(self.x)) if isinstance(self.x, Tensor | np.ndarray) else ""


def as_sets(in_domain: Any, ood: Mapping[str, Any]) -> tuple[InputSet, list[InputSet]]:
    """Return labelled in-domain data and OOD sets by their names, or refuse what cannot be compared."""
    inside = InputSet.of("in_domain", in_domain, "" if isinstance(in_domain, LabelledSet) else IN_DOMAIN, labelled=True)
    if not isinstance(ood, Mapping):
        raise TypeError(f"ood must be a dict of sets by name, or a preset's name; got {type(ood).__name__}")
    outside = [InputSet.of(f"ood[{name!r}]", data, name) for name, data in ood.items()]
    for given in outside:
        if None not in (given.shape, inside.shape) and given.shape != inside.shape:
            hint = "; ImageSet.resized and with_channels change them" if isinstance(in_domain, ImageSet) else ""
            raise ValueError(
                f"inputs of {given.name} are {given.shape} and those of {inside.name} are {inside.shape}{hint}"
            )
    return inside, outside
