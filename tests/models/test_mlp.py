import torch

from greedy_ensembles.models import MLP


def test_parameter_counts_by_hand():
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(MLP(2)) == (2 * 128 + 128) + (128 * 128 + 128) + (128 * 2 + 2)
    assert count(MLP(5, hidden=(), classes=3)) == 5 * 3 + 3


def test_shapes_and_nonlinearity():
    model = MLP(4, hidden=(7, 6), classes=3)
    x = torch.randn(5, 4)
    assert model(x).shape == (5, 3)
    assert not torch.allclose(model(2 * x) - model(torch.zeros(4)), 2 * (model(x) - model(torch.zeros(4))))
