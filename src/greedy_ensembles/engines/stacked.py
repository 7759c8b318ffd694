"""The stacked engine: small members on the CPU train as one.

A step of a small network costs what its operations cost to start, more than what they compute. Here each is started
once for all members: parameters lie stacked in leaves (members, ...), a step is one forward and one backward pass over
the stack and one step of one optimizer. It is the same training as the plain engine's, up to the rounding of sums.
While they train, members' weights and optimizers' states are parts of the stack, so that what is done to a member
between epochs is done to its part; a member that is finished gets memory of its own.
"""

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from greedy_ensembles.engines.accelerate import has_hooks
from greedy_ensembles.engines.member import Member
from greedy_ensembles.engines.plain import Losses, PlainEngine, Plan, Step, means, set_learning_rate
from greedy_ensembles.inputs import as_logits, dtype_of

#: Numbers in, numbers out, one by one: what they do to a stack is what they do to each member.
POINTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)
_LAYERS = {nn.Linear, nn.LayerNorm, nn.Flatten, *POINTWISE}

#: Parameters a member. Measured with MLPs of two equal hidden layers, 3 and 11 members, batches of 32 and 128, one and
#: two threads: stacked, an epoch is 1.9 to 7 times as fast with 2,000 parameters, 1.2 to 3.3 with 74,000, 1.0 to 1.6
#: with 280,000, and with a million it is slower.
LARGEST = 250_000


class StackedEngine(PlainEngine):
    """Trains a group of members for which `why_not_stacked` finds no reason; all of them are at the same epoch."""

    def __init__(self, members: list[Member], step: Step) -> None:
        super().__init__(members, step)
        for member in members:
            member.model.train()
        #: For every parameter of the model, that of each member.
        self._parameters = list(zip(*(member.model.parameters() for member in members), strict=True))
        self._leaves = nn.ParameterList(
            nn.Parameter(torch.stack(parts).detach(), requires_grad=parts[0].requires_grad)
            for parts in self._parameters
        )
        self._model = StackedModel(members[0].model, list(self._leaves))
        assert step.make_optimizer is not None  # or `why_not_stacked` has a reason
        self._optimizer = step.make_optimizer(self._leaves)
        # Without hooks and records for profilers, which take longer than a step of small weights.
        self._update = partial(inspect.unwrap(type(self._optimizer).step), self._optimizer)
        for leaf, parts in zip(self._leaves, self._parameters, strict=True):
            states = [member.optimizer.state.get(p, {}) for member, p in zip(members, parts, strict=True)]
            for name, value in states[0].items():
                alike = value.shape == parts[0].shape  # a count of steps is the same for all
                stack = torch.stack([state[name] for state in states]) if alike else value.clone()
                self._optimizer.state[leaf][name] = stack
        #: Every member's parameters, and the parts of the stack that they are while they train.
        self._views = [
            (parameter, leaf.detach()[k])
            for leaf, parts in zip(self._leaves, self._parameters, strict=True)
            for k, parameter in enumerate(parts)
        ]
        for parameter, view in self._views:
            parameter.data = view
        self._share_states()

    def train_epoch(self, plan: Plan) -> list[Losses]:
        """Train every member for one epoch, and return its means of loss and term."""
        for parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr():  # it was given others, in other memory, since the epoch before
                parameter.data = view.copy_(parameter.detach())
        samples: Sequence[Tensor | None] = plan.samples or [None] * len(plan.rates)
        losses, terms = [], []
        for examples, chosen, rate in zip(plan.examples, samples, plan.rates, strict=True):
            set_learning_rate(self._optimizer, rate)
            loss, term = self._take_all(examples, chosen)
            losses.append(loss * examples.shape[1])
            terms.append(term)
        for member in self.members:
            set_learning_rate(member.optimizer, plan.rates[-1])
        if not self.members[0].optimizer.state:  # the first step makes it
            self._share_states()
        totals = torch.stack([torch.stack(part).sum(dim=0, dtype=torch.float64) for part in (losses, terms)])
        return means(totals, plan, self._step)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return every member's logits in eval mode, (members, n, classes)."""
        for member in self.members:
            if member.model.training:
                member.model.eval()
        return self._model(inputs.expand(len(self.members), *inputs.shape).contiguous())

    def _take_all(self, examples: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take a step with these examples, (members, batch), and samples of p*; return every member's loss and term.

        Classes come before rows in what loss and coupling are computed from: a softmax of few classes is faster so.
        """
        step, (count, batch) = self._step, examples.shape
        inputs, targets = step.look_up(examples.flatten())
        inputs, targets = inputs.unflatten(0, (count, batch)), targets.unflatten(0, (count, batch))
        targets = targets.mT if targets.ndim == 3 else targets
        samples, bank = step.samples(chosen)
        if samples is None or bank is None:
            losses = cross_entropy(self._model(inputs).mT, targets, reduction="none").mean(dim=1)
            terms, objective = torch.zeros_like(losses), losses
        else:
            both = self._model(torch.cat([inputs, samples.expand(count, *samples.shape)], dim=1)).mT
            logits, others = both.split([batch, len(samples)], dim=2)
            losses = cross_entropy(logits, targets, reduction="none").mean(dim=1)
            terms = step.coupling.terms(step.outputs(others).mT, bank)
            objective = losses + terms
        for leaf in self._leaves:  # what the optimizer's zero_grad does, without its record for profilers
            leaf.grad = None
        objective.backward(torch.ones_like(objective))
        with torch.no_grad():
            self._clip_gradients()
            self._update()
        return losses.detach(), terms.detach()

    def _clip_gradients(self) -> None:
        """Cut every member's gradients down to a norm, as `torch.nn.utils.clip_grad_norm_` does."""
        if self._step.recipe.clip is None:
            return
        gradients = [leaf.grad for leaf in self._leaves if leaf.grad is not None]
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        scales = (self._step.recipe.clip / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scales.view(-1, *(1,) * (gradient.ndim - 1)))

    def _share_states(self) -> None:
        """Make the states of members' optimizers parts of those of the stack's."""
        for leaf, parameters in zip(self._leaves, self._parameters, strict=True):
            for name, value in self._optimizer.state.get(leaf, {}).items():
                parts = value if value.shape == leaf.shape else [value] * len(parameters)
                for member, parameter, part in zip(self.members, parameters, parts, strict=True):
                    member.optimizer.state[parameter][name] = part


class StackedModel:
    """Many models of one structure as one, from inputs (members, n, ...) to logits (members, n, classes)."""

    def __init__(self, model: nn.Module, leaves: list[Tensor]) -> None:
        left = iter(leaves)  # in the order of the model's parameters, which is that of its layers
        self._layers = [
            (layer, {name: next(left) for name, _ in layer.named_parameters()}) for _, layer in layers(model)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Send every member's inputs through it."""
        after_linear = False
        for layer, parameters in self._layers:
            # In place where that is allowed: no one else needs what a linear layer returned.
            x = x.relu_() if after_linear and isinstance(layer, nn.ReLU) else _apply(layer, parameters, x)
            after_linear = isinstance(layer, nn.Linear)
        return as_logits(x, axes=3)


def _apply(layer: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    if isinstance(layer, POINTWISE):
        return layer(x)  # type: ignore[no-any-return]
    if isinstance(layer, nn.Linear):
        weight, bias = parameters["weight"], parameters.get("bias")
        if x.ndim == 3:
            return Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
        return Linear.apply(x.flatten(1, -2), weight, bias).unflatten(1, x.shape[1:-1])  # type: ignore[no-any-return, no-untyped-call]
    return vmap(lambda weights, rows: functional_call(layer, weights, (rows,)))(parameters, x)  # type: ignore[no-any-return]


class Linear(torch.autograd.Function):
    """Every member's linear map, rows (members, n, inputs) to (members, n, outputs).

    What autograd would do, but for the product that gives the weights' gradient: one whose result is narrow in its last
    dimension is slow (measured: 6 times, 128 x 2 beside 2 x 128), so its transpose is computed where that is better.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows times weight, plus bias."""
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of those of rows, weight and bias that need one."""
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        tall = weight.shape[1] > weight.shape[2]
        return (
            torch.bmm(gradient, weight) if of_rows else None,
            (torch.bmm(rows.mT, gradient).mT if tall else torch.bmm(gradient.mT, rows)) if of_weight else None,
            gradient.sum(dim=1) if of_bias else None,
        )


def why_not_stacked(members: list[Member], step: Step) -> str | None:
    """Return the first reason why these members cannot, or should not, train as one, or None.

    The answer is strict. A layer that is not known to do the same in every run, one row at a time, or anything that a
    member's own objects do beside it (hooks, losses, augmentations of one's own) means a plain loop over the members.
    """
    execution, models = step.execution, [member.model for member in members]
    parameters = [id(p) for model in models for p in model.parameters()]
    reasons = {
        "one member has no others to be stacked with": len(members) < 2,
        f"the device is {execution.device}, not the CPU": execution.device.type != "cpu",
        f"precision is {execution.precision}": execution.precision != "float32",
        "the optimizer is the user's own": step.make_optimizer is None,
        "the loss is the user's own": step.loss is not cross_entropy,
        "the recipe augments": step.augment is not None,
        "gradients are accumulated": step.recipe.accumulate > 1,
        "weights are averaged": step.recipe.ema is not None,
        f"{step.off_device}": step.off_device is not None,
        "examples and samples of p* cannot share a pass": step.bank is not None and not step.one_pass,
        "members differ in structure": len({_structure(model) for model in models}) > 1,
        "members share parameters": len(parameters) != len(set(parameters)),
    }
    of_models = filter(None, map(why_no_layers, models))
    return next((reason for reason, holds in reasons.items() if holds), None) or next(of_models, None)


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the layers inside nested `nn.Sequential`s, by name, in the order in which inputs go through them."""
    if not (isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward):
        yield "", model
        return
    for name, part in model._modules.items():  # not named_children, which leaves out what comes a second time
        assert part is not None
        for inner, layer in layers(part):
            yield f"{name}.{inner}" if inner else name, layer


def why_no_layers(model: nn.Module) -> str | None:
    """Return the first reason why a model is not a plain sequence of small layers, or None."""
    parts = list(layers(model))
    dtype = dtype_of(model)
    for name, layer in parts:
        if type(layer) not in _LAYERS:
            return f"{name or 'the model'} is a {type(layer).__name__}"
    hooks = ((p._backward_hooks, p._post_accumulate_grad_hooks) for p in model.parameters())
    if any(map(has_hooks, model.modules())) or any(map(any, hooks)):
        return "the model has hooks"
    used = [id(p) for _, layer in parts for p in layer.parameters()]
    if len(used) != len(set(used)):
        return "layers share parameters"
    if set(used) != {id(p) for p in model.parameters()}:
        return "the model has parameters outside its layers"
    if dtype not in (torch.float32, torch.float64) or any(p.dtype != dtype for p in model.parameters()):
        return "parameters are not all float32, or all float64"
    count = sum(p.numel() for p in model.parameters())
    if count > LARGEST:
        return f"{count} parameters a member keep the CPU busy as they are, from {LARGEST} on"
    return None


def _structure(model: nn.Module) -> tuple[object, ...]:
    """Return what has to be the same in all members; a layer's representation names its settings."""
    parameters = ((name, p.shape, p.requires_grad) for name, p in model.named_parameters())
    return (*((name, repr(layer)) for name, layer in layers(model)), *parameters)
