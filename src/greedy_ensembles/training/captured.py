"""The captured engine: the whole step of a group as one CUDA graph, its members side by side.

Small networks at usual batch sizes are bound by the launches of their kernels, not by the GPU. So everything that a
step does, from choosing the examples to the optimizer, is recorded once and replayed from then on, with faster layers
in the place of some (`accelerate`). Where training is long enough for it to pay, networks that have none of those are
compiled first.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.engines.accelerate import accelerate
from greedy_ensembles.engines.graphs import record, warm_up
from greedy_ensembles.hidden_state import HiddenState, attributes
from greedy_ensembles.training.compilation import compiled, worth_compiling
from greedy_ensembles.training.eager import as_losses, epoch_batches, needs_samples
from greedy_ensembles.training.engine import Engine
from greedy_ensembles.training.examples import ArrayExamples
from greedy_ensembles.training.group_step import GroupStep, make_capturable
from greedy_ensembles.training.lanes import Draws, Lanes
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.recipe import learning_rate_factor
from greedy_ensembles.training.seeds import global_state
from greedy_ensembles.training.step import Losses
from greedy_ensembles.training.weighting_set import WeightingSet
from greedy_ensembles.training.working_copies import WorkingCopies


class CannotCapture(Exception):
    """Why a step cannot be recorded, in a few words."""


def why_not_captured(problem: Problem) -> str | None:
    """Return what forbids capturing this training, as far as can be told without trying."""
    if not isinstance(problem.examples, ArrayExamples):
        return "a Dataset is read item by item; give data as a pair of arrays"
    if callable(problem.recipe.optimizer):
        return "optimizers of one's own may do what cannot be recorded; those of the recipe can"
    return None


class CapturedEngine(Engine):
    """Trains a group of members together; raises `CannotCapture` where their step cannot be recorded."""

    def __init__(self, members: list[Member], problem: Problem, weighting: WeightingSet | None) -> None:
        self._members, self._problem = members, problem
        self._weighting = weighting if needs_samples(members, weighting) else None
        self._totals = torch.zeros(2, len(members), dtype=torch.float64, device=problem.device)
        self._draws = Draws(members, problem.device)
        self._pool = torch.cuda.graph_pool_handle()  # of all recordings: what outlives one of them is made before it
        coupled = self._weighting is not None
        self._lanes = Lanes(len(members), problem.device, coupled) if len(members) > 1 else None
        lengths = [len(batch) for batch in epoch_batches(problem, members[0])]
        make_capturable(members, problem.device)
        with _kept(members, problem):
            self._full = self._record(lengths.count(lengths[0]), lengths[0], worth_compiling(members, problem))
            rest = lengths[-1] if lengths[-1] != lengths[0] else 0
            self._rest = self._record(1, rest, compile_models=False) if rest else None
        self._alive = attributes(member.model for member in members)

    def train_epoch(self) -> list[Losses]:
        """Train every member for one epoch, each against the bank and the members before it in the group."""
        problem, members = self._problem, self._members
        batches = [epoch_batches(problem, member) for member in members]
        steps = len(batches[0])
        numbers = range(members[0].epoch * steps, (members[0].epoch + 1) * steps)
        samples = [] if self._weighting is None else [self._weighting.indices(step) for step in numbers]
        rates = [learning_rate_factor(problem.recipe, step / steps) for step in numbers]
        full = steps if self._rest is None else steps - 1
        for member in members:
            member.model.train()
        self._totals.zero_()
        with self._draws.lent():
            for recorded, part in ((self._full, slice(full)), (self._rest, slice(full, steps))):
                if recorded is not None:
                    recorded.play([b[part] for b in batches], samples[part], rates[part])
            # Reading the sums waits for the device, after which the generators' states are those after the epoch.
            return as_losses(self._totals, sum(map(len, batches[0])), steps, members, self._weighting)

    def _record(self, rows: int, batch_size: int, compile_models: bool) -> "Recorded":
        members = self._members
        models = [member.model for member in members]
        # Where a weight is used twice in a step, its gradients are to be added in single precision, as autocast does.
        once = self._weighting is None or self._problem.one_pass
        in_half = self._problem.recipe.precision == "bf16" and once and not compile_models

        def step() -> GroupStep:
            copies = [WorkingCopies(member.model, member.optimizer) for member in members] if in_half else None
            tables = self._totals, rows, batch_size
            return GroupStep(members, self._problem, self._weighting, *tables, self._draws.of, copies)

        watched = {"the model": models[0], **_functions(self._problem)}
        if compile_models:
            try:
                with compiled(models):
                    return Recorded(step(), watched, self._lanes, self._draws, self._problem.device, self._pool)
            except Exception as error:  # of any kind: what compiles depends on model, drivers and versions
                warnings.warn(f"trained without compiling, which failed: {_in_short(error)}", stacklevel=2)
        plain = step()  # which looks for layers of PyTorch's own kinds
        with accelerate(*models):
            return Recorded(plain, watched, self._lanes, self._draws, self._problem.device, self._pool)


class Recorded:
    """A step that was recorded, to be played as often as its tables have rows."""

    def __init__(
        self,
        step: GroupStep,
        watched: Mapping[str, object],
        lanes: Lanes | None,
        draws: Draws,
        device: torch.device,
        pool: Any,
    ) -> None:
        self._step = step
        run = step.run if lanes is None else partial(lanes.run, step)
        remembered = [HiddenState(watched)]  # before, and after each run

        def first_row() -> None:
            step.rewind()
            run()
            remembered.append(HiddenState(watched))

        before = _host_generators()
        try:
            with draws.lent():
                warm_up(first_row, device)
            if _host_generators() != before:
                raise CannotCapture("model, loss or augmentation draws random numbers on the host")
            first, *later = remembered[1:]
            reasons = [remembered[0].why_not_after_the_first(first)]
            reasons += [earlier.why_not(state) for earlier, state in pairwise((first, *later))]
            if why := next(filter(None, reasons), None):
                raise CannotCapture(why)
            self._alive = remembered[-1].found  # what a recording reads, whoever forgets it
            self._graph, _ = record(run, device, draws.generators, pool)
            step.forget()  # so that the next recording can use the memory
        except CannotCapture:
            raise
        except Exception as error:  # of any kind: the model, loss and augmentation may be anyone's
            raise CannotCapture(_in_short(error)) from error

    def play(self, examples: Sequence[Sequence[Tensor]], samples: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Take as many steps as there are rates."""
        self._step.load(examples, samples, rates)
        for _ in rates:
            self._graph.replay()


@contextmanager
def _kept(members: Sequence[Member], problem: Problem) -> Iterator[None]:
    """Leave members as they were found, in the same memory: recording takes steps that are not part of training.

    What the first step made for later ones stays where a recording needs it.
    """
    device = problem.device
    watched = {f"member {m.number}": m.model for m in members} | _functions(problem)
    remembered = HiddenState(watched, copies=True)
    states = [(_copied(m.model.state_dict()), _copied(_tensors(m.optimizer)), m.generators) for m in members]
    default = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    recorded = False
    try:
        yield
        recorded = True
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a step that broke off may be under way on some lanes still
        if recorded:
            remembered.restore_contents()
        else:
            remembered.restore()
        for member, (weights, moments, generators) in zip(members, states, strict=True):
            member.model.load_state_dict(weights, strict=False)  # the first step may have made a buffer
            _restore(member.optimizer, moments, recorded)
            member.generators = generators
        if default is not None:
            torch.cuda.set_rng_state(default, device)


def _functions(problem: Problem) -> dict[str, object]:
    """Return what a step calls beside models, by what to call it."""
    return {"the loss": problem.loss, "the augmentation": problem.augment}


def _restore(optimizer: torch.optim.Optimizer, moments: dict[str, Tensor], recorded: bool) -> None:
    """Give an optimizer its moments back.

    What the first step made, a recording needs where it lies; it starts from nothing. Where none came about, it goes:
    a step that broke off may have made a part of it, which no optimizer takes.
    """
    for name, value in _tensors(optimizer).items():
        if name in moments:
            value.copy_(moments[name])
        elif recorded:
            value.zero_()
    if not recorded and not moments:
        optimizer.state.clear()


def _tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                values[f"{index} {name}"] = value
    return values


def _copied(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in values.items()}


def _host_generators() -> Any:
    """Return the states of the generators that a graph cannot advance, in a form that can be compared."""
    state = global_state(torch.device("cpu"))
    return repr([state["torch"].tolist(), state["numpy"], state["python"]])


def _in_short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
