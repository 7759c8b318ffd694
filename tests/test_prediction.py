import torch
from torch import nn

from greedy_ensembles.prediction import probabilities


def test_inputs_are_scaled_and_normalised_and_outputs_are_probabilities():
    member = nn.Linear(2, 3)
    images = torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8)
    logits = member((torch.tensor([[0.0, 1.0], [0.2, 0.4]]) - 0.5) / 0.25)
    expected = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    torch.testing.assert_close(probabilities(member, images, ((0.5,), (0.25,))), expected)


def test_precision_is_at_least_single_and_double_where_the_member_is():
    x = torch.randn(4, 2)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        probs = probabilities(nn.Linear(2, 3).to(dtype), x, None)
        assert probs.dtype == expected
        torch.testing.assert_close(probs.sum(dim=1), torch.ones(4, dtype=expected))
