"""Methods that put other layers into a network, in PyTorch's transformers, whose eval mode goes past the layers."""

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.method import Batch, Dropout

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Encoder(nn.Module):
    """Reads four numbers as a sequence; their place may be first in its tensors."""

    def __init__(self, batch_first=True, padding=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=batch_first)
        self.encode = nn.TransformerEncoder(layer, 1, enable_nested_tensor=batch_first)
        self.embed, self.out = nn.Linear(1, 8), nn.Linear(8, 2)
        self.batch_first, self.padding = batch_first, padding

    def forward(self, x):
        tokens = self.embed(x.unsqueeze(2))
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        mask = torch.arange(4).expand(len(x), 4) == 3 if self.padding else None
        found = self.encode(tokens, src_key_padding_mask=mask)
        return self.out(found.select(1 if self.batch_first else 0, 0))


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("kind", [Batch, Dropout])
def test_members_say_without_gradients_what_they_say_with_them(kind, padding):
    """PyTorch's fast path, for which gradients must be off, would leave out masks."""
    method = kind()
    method.size = 3
    members = method.members(method.build(Encoder(padding=padding), 1, 0), [], 0)
    with_gradients = torch.stack([member.eval()(X) for member in members])
    with torch.no_grad():
        without = torch.stack([member(X) for member in members])
    torch.testing.assert_close(without, with_gradients)
    assert (without[0] - without[1]).abs().max() > 1e-3


def test_a_network_that_has_something_else_than_rows_first_is_refused():
    """Vectors of two members would be spread over the four places of a sequence, in silence."""
    options = {"size": 2, "method": "batch", "recipe": ge.Recipe(epochs=1), "validation": 0, "progress": False}
    with pytest.raises(ValueError, match="batch_first"):
        ge.fit(lambda: Encoder(batch_first=False), (X, Y), **options)
    ge.fit(Encoder, (X, Y), **options)


def test_a_batch_ensemble_is_exported(tmp_path):
    method = Batch()
    method.size = 2
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ensemble = ge.Ensemble.from_members(method.members(method.build(network, 1, 0), [], 0))
    ensemble.export_torch(tmp_path / "graph.pt2", X[:2])
    outputs = torch.export.load(tmp_path / "graph.pt2").module()(X)
    torch.testing.assert_close(outputs["epistemic"], ensemble.uncertainty(X).epistemic, rtol=1e-4, atol=1e-6)
