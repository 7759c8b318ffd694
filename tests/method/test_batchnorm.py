import copy

import pytest
import torch
from torch import nn

import greedy_ensembles as ge


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))


def statistics(network):
    return {name: value.clone() for name, value in network.named_buffers()}


def test_statistics_stay_while_affine_parameters_learn(network):
    network.train()
    network(torch.randn(8, 3))
    before = statistics(network)
    with ge.frozen_batchnorm(network):
        network(torch.randn(8, 3) * 100).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in statistics(network).items())
    assert network[1].weight.grad.abs().sum() > 0
    assert network[1].bias.grad.abs().sum() > 0


def test_a_plain_pass_would_have_changed_them(network):
    before = statistics(network.train())
    network(torch.randn(8, 3) * 100)
    assert not torch.equal(before["1.running_var"], statistics(network)["1.running_var"])


def test_running_statistics_are_used_and_dropout_stays_on(network):
    x = torch.randn(64, 3)
    expected = copy.deepcopy(network[:2]).eval()(x)
    with ge.frozen_batchnorm(network.train()):
        assert torch.equal(network[:2](x), expected)
        assert not torch.equal(network(x), network(x))  # dropout draws anew


def test_modes_come_back_as_they_were_even_after_an_error(network):
    network.train()
    own = nn.BatchNorm1d(2).eval()  # someone froze this one for good
    network.append(own)
    seen = []

    def fail():
        seen.append(network[1].training)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), ge.frozen_batchnorm(network):
        fail()
    assert seen == [False]
    assert network[1].training
    assert not own.training


def test_a_bias_right_before_batchnorm_is_moved_by_the_diversity_term_alone(network):
    network.train()
    x, samples = torch.randn(16, 3), torch.randn(16, 3)
    nn.functional.cross_entropy(network(x), torch.arange(16) % 2).backward()
    assert network[0].bias.grad.abs().max() < 1e-6 < 1e-3 < network[0].weight.grad.abs().max()
    network.zero_grad()
    with ge.frozen_batchnorm(network):
        outputs = network(samples).softmax(dim=1)
    ge.diversity_term(outputs, torch.rand(1, 16, 2), 1.0, 2).backward()
    assert network[0].bias.grad.abs().max() > 1e-3
