"""Many models as one: the same numbers as each by itself."""

import pytest
import torch
from greedy_ensembles.training.stacked_model import Linear, StackedModel
from torch import nn


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((2,), [lambda: nn.Linear(2, 5), nn.ReLU, lambda: nn.Linear(5, 3)]),
        ((2,), [lambda: nn.Linear(2, 5, bias=False), lambda: nn.LayerNorm(5), nn.Tanh, lambda: nn.Linear(5, 3)]),
        ((2,), [lambda: nn.ReLU(inplace=True), lambda: nn.Linear(2, 4), lambda: nn.ReLU(inplace=True)]),
        ((3, 4), [lambda: nn.Linear(4, 2), nn.GELU, nn.Flatten, lambda: nn.Linear(6, 2)]),
        ((3, 4), [nn.ReLU, lambda: nn.Linear(4, 2), nn.ReLU, nn.Flatten, lambda: nn.Linear(6, 2), nn.ReLU]),
        ((3, 4), [lambda: nn.LayerNorm((3, 4)), lambda: nn.Flatten(-2), lambda: nn.Linear(12, 2)]),
    ],
)
def test_a_stacked_model_is_its_members(shape, layers):
    models = [nn.Sequential(*(layer() for layer in layers)).double() for _ in range(3)]
    leaves = [torch.stack(own) for own in zip(*(m.parameters() for m in models), strict=True)]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    inputs = torch.randn(3, 7, *shape, dtype=torch.float64)
    expected = torch.stack([model(own.clone()) for model, own in zip(models, inputs, strict=True)])
    found = StackedModel(models[0], leaves)(inputs.clone())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    expected.backward(weights)
    found.backward(weights)
    for leaf, *own in zip(leaves, *(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(leaf.grad, torch.stack([p.grad for p in own]), rtol=1e-12, atol=1e-14)


def test_inputs_are_left_alone():
    """ReLU works in place only on what a linear layer returned."""
    inputs = torch.randn(2, 5, 3)
    before = inputs.clone()
    model = nn.Sequential(nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.ReLU())
    StackedModel(model, [torch.stack([p, p]) for p in model.parameters()])(inputs)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 5), (5, 2), (3, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_the_linear_map(inputs, outputs, bias):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4, inputs), (3, outputs, inputs), (3, outputs)]
    arguments = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    arguments = arguments if bias else [*arguments[:2], None]
    assert torch.autograd.gradcheck(Linear.apply, arguments)
