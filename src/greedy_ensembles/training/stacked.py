"""The stacked engine: small members on the CPU train as one.

A step of a small network costs what its operations cost to start, more than what they compute. Here each is started
once for all members: parameters lie stacked in leaves (members, ...), a step is one forward and one backward pass over
the stack and one step of one optimizer. It is the same training as the eager engine's, up to the rounding of sums.
While they train, members' weights and optimizers' states are parts of the stack, so that what is done to a member
between epochs is done to its part; then they get memory of their own.
"""

import inspect
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from greedy_ensembles.training.eager import as_losses, in_batches, needs_samples, shuffled
from greedy_ensembles.training.engine import Engine
from greedy_ensembles.training.heap import keep_freed_memory
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.recipe import learning_rate_factor, make_optimizer, set_learning_rate
from greedy_ensembles.training.stacked_model import StackedModel
from greedy_ensembles.training.step import Losses
from greedy_ensembles.training.weighting_set import WeightingSet


class StackedEngine(Engine):
    """Trains a group of members for which `why_not_stacked` finds no reason; all of them are at the same epoch."""

    def __init__(self, members: list[Member], problem: Problem, weighting: WeightingSet | None) -> None:
        self._members, self._problem = members, problem
        self._weighting = weighting if needs_samples(members, weighting) else None
        keep_freed_memory()
        for member in members:
            member.model.train()
        #: For every parameter, that of each member.
        self._parameters = list(zip(*(member.model.parameters() for member in members), strict=True))
        self._leaves = nn.ParameterList(
            nn.Parameter(torch.stack(own).detach(), requires_grad=own[0].requires_grad) for own in self._parameters
        )
        self._model = StackedModel(members[0].model, list(self._leaves))
        self._optimizer = make_optimizer(problem.recipe, self._leaves)
        # Without hooks and records for profilers, which take longer than a step of small weights.
        self._update = partial(inspect.unwrap(type(self._optimizer).step), self._optimizer)
        for leaf, own in zip(self._leaves, self._parameters, strict=True):
            states = [member.optimizer.state.get(p, {}) for member, p in zip(members, own, strict=True)]
            for name, value in states[0].items():
                alike = value.shape == own[0].shape  # a count of steps is the same for all
                stack = torch.stack([state[name] for state in states]) if alike else value.clone()
                self._optimizer.state[leaf][name] = stack
        self._lent = [
            (parameter, leaf.detach()[k])
            for leaf, own in zip(self._leaves, self._parameters, strict=True)
            for k, parameter in enumerate(own)
        ]
        for parameter, place in self._lent:
            parameter.data = place
        self._lend_states()

    def train_epoch(self) -> list[Losses]:
        """Train every member for one epoch, each against the bank and the members before it in the group."""
        problem, members, weighting = self._problem, self._members, self._weighting
        self._take_back()
        order = torch.stack([shuffled(problem, member) for member in members])
        batches = in_batches(order, problem.recipe.batch_size)
        labels = in_batches(problem.examples.labels[order], problem.recipe.batch_size)
        steps, rate = len(batches), 1.0
        numbers = range(members[0].epoch * steps, (members[0].epoch + 1) * steps)
        samples = [None if weighting is None else weighting.indices(step) for step in numbers]
        losses, terms = [], []
        for step, indices, targets, chosen in zip(numbers, batches, labels, samples, strict=True):
            rate = learning_rate_factor(problem.recipe, step / steps)
            set_learning_rate(self._optimizer, rate)
            loss, term = self._step(indices, targets, chosen)
            losses.append(loss * indices.shape[1])
            terms.append(term)
        for member in members:
            set_learning_rate(member.optimizer, rate)
        if not members[0].optimizer.state:  # the first step makes it
            self._lend_states()
        totals = torch.stack([torch.stack(part).sum(dim=0, dtype=torch.float64) for part in (losses, terms)])
        return as_losses(totals, sum(indices.shape[1] for indices in batches), steps, members, weighting)

    @torch.no_grad()
    def close(self) -> None:
        """Give members weights and states of their own: a copy of one must not drag along those of all."""
        for own in self._parameters:
            for member, parameter in zip(self._members, own, strict=True):
                parameter.data = parameter.detach().clone()
                state = member.optimizer.state.get(parameter, {})
                state.update({name: value.clone() for name, value in state.items()})

    @torch.no_grad()
    def are_finite(self) -> list[bool]:
        """Return for each member whether its weights are still numbers, as their sums say in double precision."""
        sums = [leaf.flatten(1).sum(dim=1, dtype=torch.float64) for leaf in self._leaves]
        return list(torch.stack(sums).isfinite().all(dim=0).tolist())

    @torch.no_grad()
    def count_correct(self) -> list[int | None]:
        """Return how many held-out examples each member gets right, or None where none are held out."""
        problem, members = self._problem, self._members
        if len(problem.validation) == 0:
            return [None] * len(members)
        for member in members:
            if member.model.training:
                member.model.eval()
        correct = torch.zeros(len(members), dtype=torch.long)
        for indices in problem.validation.split(problem.evaluation_rows):
            inputs = problem.inputs(problem.examples.inputs(indices))
            predicted = self._model(inputs.expand(len(members), *inputs.shape).contiguous()).argmax(dim=2)
            correct += (predicted == problem.examples.labels[indices]).sum(dim=1)
        return list(correct.tolist())

    def _step(self, indices: Tensor, targets: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take a step with these examples, (members, batch), and samples of p*; return every member's loss and term.

        Classes come before rows in what loss and coupling are computed from: a softmax of few classes is faster so.
        """
        problem, weighting = self._problem, self._weighting
        inputs = problem.inputs(problem.examples.inputs(indices.flatten())).unflatten(0, indices.shape)
        if weighting is None or chosen is None:
            losses = cross_entropy(self._model(inputs).mT, targets, reduction="none").mean(dim=1)
            terms, objective = torch.zeros_like(losses), losses
        else:
            assert problem.coupling is not None  # who has a p* has a coupling
            samples = problem.inputs(weighting.samples[chosen])
            both = self._model(torch.cat([inputs, samples.expand(len(indices), *samples.shape)], dim=1)).mT
            logits, others = both.split([indices.shape[1], len(chosen)], dim=2)
            losses = cross_entropy(logits, targets, reduction="none").mean(dim=1)
            terms = problem.coupling.terms(problem.outputs(others).mT, weighting.bank.at(chosen))
            objective = losses + terms
        for leaf in self._leaves:  # what the optimizer's zero_grad does, without its record for profilers
            leaf.grad = None
        objective.backward(torch.ones_like(objective))
        with torch.no_grad():
            self._update()
        return losses.detach(), terms.detach()

    def _lend_states(self) -> None:
        """Let members' optimizers have their parts of the stack's states."""
        for leaf, own in zip(self._leaves, self._parameters, strict=True):
            for name, value in self._optimizer.state.get(leaf, {}).items():
                parts = value if value.shape == leaf.shape else [value] * len(own)
                for member, parameter, part in zip(self._members, own, parts, strict=True):
                    member.optimizer.state[parameter][name] = part

    @torch.no_grad()
    def _take_back(self) -> None:
        """Take the weights of members that were given others, in other memory, since the epoch before."""
        for parameter, place in self._lent:
            if parameter.data_ptr() != place.data_ptr():
                parameter.data = place.copy_(parameter)
