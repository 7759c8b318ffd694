"""`ge.Coupler`: what a training loop of one's own, or another library's, needs of the method.

It takes the samples of p* that `ge.fit` would take, sends them through the model as the plain engine does in two
passes, and asks the same couplings for the term.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from greedy_ensembles.checks import check_choice, check_count, check_kind
from greedy_ensembles.generators import WEIGHTING_BATCH, generator
from greedy_ensembles.inputs import (
    SOFTMAX,
    Inputs,
    are_probabilities,
    as_logits,
    batches_of,
    device_of,
    dtype_of,
    each,
    logits_of,
    take,
)
from greedy_ensembles.labels import DISTANCES, TARGETS
from greedy_ensembles.method import Bank, Coupling, Statistics, TwoPasses, as_coupling, draw_samples
from greedy_ensembles.method.weighting import Weighting, as_weighting

_ROWS = 1024  # samples at once outside of training steps


class Coupler:
    """The method for a training loop of your own: samples of p*, what finished members say of them, and the term.

    >>> import greedy_ensembles as ge
    >>> x, y = torch.randn(64, 2), torch.arange(64) % 2
    >>> coupler = Coupler(ge.weighting.Gaussian.from_data(x), size=2)
    >>> members = [ge.models.MLP(2), ge.models.MLP(2)]
    >>> for model in members:
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     for _ in range(3):
    ...         with coupler.step(model):  # records BatchNorm's statistics
    ...             logits = model(x)
    ...         loss = torch.nn.functional.cross_entropy(logits, y) + coupler.term(model)
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...     coupler.add(model)  # it is finished: later members differ from it
    >>> ensemble = ge.Ensemble.from_members(members)

    Members train one after another. With the same seed, sizes and weights, terms are those of `ge.fit`. In
    data-parallel training every process has a coupler, and all of them take the same samples. To go on after a restart,
    make the coupler anew and add the finished members again.

    Args:
        weighting: p*, where members are asked to differ; see `ge.weighting`.
        size: M, the number of members that the ensemble will have.
        strength: lambda_M, how strongly members repel each other; "deep" does not look at it.
        method: a name, as in `ge.fit`, or a `ge.Coupling`; its members meet earlier ones.
        samples: size of the p* set; `ge.fit` has as many as training examples.
        batch_size: samples of p* a step.
        statistics: what BatchNorm normalises samples of p* by: "batch", the statistics of the step's examples, or
            "running", as in the paper.
        transform: from samples, in the space of the data, to what the model takes; None: they are that already.
        distance: between what of members, "probabilities" or "logits".
        targets: "classes", of which an input has one, or "labels", of which any may apply: (n, labels) logits.
        seed: where the samples come from.
    """

    def __init__(
        self,
        weighting: Weighting,
        size: int,
        strength: float = 1.0,
        method: str | Coupling = "greedy",
        *,
        samples: int = 4096,
        batch_size: int = 128,
        statistics: Statistics = "batch",
        transform: Callable[[Any], Any] | None = None,
        distance: str = "probabilities",
        targets: str = "classes",
        seed: int = 0,
    ) -> None:
        for name, count in (("size", size), ("samples", samples), ("batch_size", batch_size)):
            check_count(name, count, least=1)
        check_count("seed", seed, least=0)
        check_choice("statistics", statistics, get_args(Statistics))
        check_choice("targets", targets, TARGETS)
        check_choice("distance", distance, DISTANCES[targets])
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be a callable from samples to what the model takes, got {transform!r}")
        self._coupling = as_coupling(method, size, strength)
        _check_one_after_another(self._coupling, size)
        self._batch_size, self._statistics, self._seed = batch_size, statistics, seed
        self._compared, self._targets = DISTANCES[targets][distance], targets
        self._transform = transform if transform is not None else lambda one: one
        self._samples = draw_samples(as_weighting(weighting), samples, seed)
        self._bank: Bank | None = None  # made with the first member, which says how many classes there are
        self._steps = 0
        self._passes: tuple[nn.Module, TwoPasses] | None = None  # of the step under way

    def __len__(self) -> int:
        """Return how many members are finished."""
        return 0 if self._bank is None else len(self._bank)

    @contextmanager
    def step(self, model: nn.Module) -> Iterator[None]:
        """Record, inside the block, the statistics of the examples in BatchNorm layers; call the model there."""
        model = _plain(model)
        synced = any(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())
        if synced and self._statistics == "batch":
            raise ValueError(
                "model has SyncBatchNorm, whose statistics are of all processes; use Coupler(statistics='running')"
            )
        passes = TwoPasses(model, self._statistics)
        self._passes = model, passes
        with passes.of_examples() if self._meets else nullcontext():
            yield

    def term(self, model: nn.Module) -> Tensor:
        """Return what the method adds to the loss of this step, a number with gradients; 0 for the first member.

        It is 0, and counts as no step, where gradients are off, as other libraries have it when they evaluate.
        """
        model = _plain(model)
        if self._passes is None or self._passes[0] is not model:
            raise ValueError("model must be the one of the step before: with coupler.step(model): logits = model(x)")
        (_, passes), self._passes = self._passes, None
        if not torch.is_grad_enabled():
            return torch.zeros((), device=device_of(model))
        number, self._steps = self._steps, self._steps + 1
        if self._bank is None or not self._meets:
            return torch.zeros((), device=device_of(model))
        self._bank = self._bank.to(device_of(model))
        chosen = torch.randint(
            self._bank.count, (self._batch_size,), generator=generator(WEIGHTING_BATCH, self._seed, number)
        ).to(self._bank.device)
        with passes.of_samples():
            try:
                live = self._outputs(model, take(self._bank.samples, chosen))
            except StopIteration:  # a layer has no recorded statistics left
                raise ValueError("model must be called inside coupler.step, on the examples of the step") from None
        return self._coupling.terms(live[None], self._bank.at(chosen)).sum()

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Enter a finished member: later ones are asked to differ from what it says of p* in eval mode."""
        model = _plain(model)
        if len(self) == self._coupling.size:
            raise ValueError(f"size is {self._coupling.size}, and as many members were added already")
        modes = [(layer, layer.training) for layer in model.modules()]
        samples, device = self._samples if self._bank is None else self._bank.samples, device_of(model)
        try:
            model.eval()
            rows = [self._outputs(model, each(lambda one: one.to(device), x)) for x in batches_of(samples, _ROWS)]
        finally:
            for layer, mode in modes:
                layer.training = mode
        row = torch.cat(rows).float()
        if self._bank is None:
            self._bank = Bank(samples, self._coupling.size, row.shape[1])
        self._bank = self._bank.to(device)
        if row.shape != self._bank.row_shape:
            raise ValueError(f"model has {row.shape[1]} classes, and members before it {self._bank.row_shape[1]}")
        self._bank.append(row)
        self._steps, self._passes = 0, None

    @property
    def _meets(self) -> bool:
        return len(self) > 0 and self._coupling.sees != "none"

    def _outputs(self, model: nn.Module, samples: Inputs) -> Tensor:
        """Return what a model says of samples, (n, classes) or (n, labels), as distances are measured between."""
        dtype = dtype_of(model)
        inputs = each(lambda one: one.to(dtype) if one.is_floating_point() else one, self._transform(samples))
        logits = as_logits(found := logits_of(model, inputs))
        if self._targets == "labels" and logits is not found:
            raise ValueError(f"model must return logits (n, labels) of two labels or more, got {tuple(found.shape)}")
        if not torch.is_grad_enabled() and are_probabilities(logits):  # in steps, a GPU would have to be waited for
            raise ValueError(f"model {SOFTMAX}")
        return self._compared(logits)


def _plain(model: nn.Module) -> nn.Module:
    """Return the network itself: a second pass through the wrapper would send BatchNorm's buffers around again."""
    check_kind("model", model, nn.Module, "an nn.Module")
    return model.module if isinstance(model, DistributedDataParallel) else model


def _check_one_after_another(coupling: Coupling, size: int) -> None:
    """Refuse a method that does more than add a term to a loss, or whose members must train together."""
    kind = type(coupling)
    if coupling.one_network or kind.recipe is not Coupling.recipe or kind.build is not Coupling.build:
        raise ValueError(f"method {coupling.label!r} changes how members are made, which ge.fit(method=...) does")
    if coupling.sees == "all" and size > 1:
        raise ValueError(
            f"every member of method {coupling.label!r} meets all others, and here they train one after another; "
            "use ge.fit(schedule='concurrent')"
        )
