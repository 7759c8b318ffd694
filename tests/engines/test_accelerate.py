"""Swapped layers, in our networks and in others': the same numbers, and plain networks again afterwards."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tests.engines.networks import ResNet, images
from torch import nn
from torch.nn.functional import cross_entropy

from greedy_ensembles.engines.accelerate import BatchNormReLU, ConvolutionBeforeNorm, accelerate
from greedy_ensembles.engines.graphs import record, warm_up
from greedy_ensembles.method import frozen_batchnorm, split_batchnorm
from greedy_ensembles.models import VGG16BN, PreResNet

needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


#: A network, how many of its norms are followed by ReLU alone, how many of these follow a convolution with a bias
#: alone, and how many ReLUs are left.
NETWORKS = {
    "PreResNet8": (partial(PreResNet, 8), 7, 0, 0),
    "PreResNet47": (partial(PreResNet, 47), 46, 0, 0),
    "VGG16BN": (VGG16BN, 13, 13, 2),
    "ResNet": (ResNet, 5, 1, 4),
}
BLOCKS = {
    "all rows": lambda _: nullcontext(),
    "running": split_batchnorm,
    "batch": split_batchnorm,
    "frozen": frozen_batchnorm,
}


def settled(make_net):
    """Return a network whose weights and statistics are neither 0 nor 1."""
    torch.manual_seed(0)
    net = make_net()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.uniform_(layer.weight, 0.3, 1.5)
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=0.3)
        elif isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return net


def kinds(loss):
    """Return the kinds of operations that a gradient goes through, each as often as it comes."""
    seen, left, found = set(), [loss.grad_fn], []
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.append(type(node).__name__)
            left += [other for other, _ in node.next_functions]
    return found


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in NETWORKS for mode in BLOCKS if name not in ("PreResNet47", "VGG16BN") or mode == "batch"],
)
def test_a_network_trains_the_same_numbers(name, mode, as_on_a_gpu):
    """As near to those of double precision as PyTorch's layers are, over two steps."""
    make_net, norms, biases, left = NETWORKS[name]
    plain = settled(make_net)
    ours, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    arguments = {"running": (4, "running"), "batch": (4, "batch")}.get(mode, ())
    operations = []

    def train(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x, y, first = images().to(next(net.parameters()).dtype), torch.arange(6) % 4, {}
        for _ in range(2):
            with BLOCKS[mode](net, *arguments):
                logits = net(x)
            optimizer.zero_grad()
            loss = cross_entropy(logits, y)
            operations.append(kinds(loss))
            loss.backward()
            first = first or {f"gradient of {key}": p.grad.clone() for key, p in net.named_parameters()}
            optimizer.step()
        return first | {"logits": logits.detach()} | net.state_dict()

    theirs, expected = train(plain), train(exact)
    with accelerate(ours):
        swapped = [type(layer) for layer in ours.modules()]
        assert (swapped.count(BatchNormReLU), swapped.count(ConvolutionBeforeNorm)) == (norms, biases)
        found = train(ours)
    if mode != "frozen":  # where the kernels have no part in it
        assert operations[-1].count("_NormReLUBackward") == norms
        assert operations[-1].count("ReluBackward0") == left
    for key, value in expected.items():
        off, usual = ((other[key].double() - value).norm() for other in (found, theirs))
        assert off <= 10 * usual + 0.02 * value.double().norm(), key  # some ReLU may let through what another does not


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_predicts_the_same_numbers(name, as_on_a_gpu):
    net = settled(NETWORKS[name][0]).eval()
    with torch.no_grad():
        expected = net(images())
        with accelerate(net):
            found = net(images())
    assert not torch.equal(found, expected)  # it was not the same way
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_elsewhere_nothing_changes_but_what_layers_are_called(name):
    """On a CPU, not a bit."""
    net = settled(NETWORKS[name][0]).eval()
    expected = net(images())
    with accelerate(net):
        assert torch.equal(net(images()), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_plain_again(name, as_on_a_gpu):
    net = NETWORKS[name][0]()
    before = [(key, type(layer), set(vars(layer))) for key, layer in net.named_modules()]
    tensors = dict((*net.named_parameters(), *net.named_buffers()))

    def broken_off():
        with accelerate(net), split_batchnorm(net, 3):
            assert list(net.state_dict()) == list(NETWORKS[name][0]().state_dict())
            net(images(4))
            raise KeyError

    with pytest.raises(KeyError):
        broken_off()
    assert [(key, type(layer), set(vars(layer))) for key, layer in net.named_modules()] == before
    after = dict((*net.named_parameters(), *net.named_buffers()))
    assert all(after[key] is value for key, value in tensors.items())
    assert type(torch.relu(torch.ones(2).requires_grad_()).grad_fn).__name__ == "ReluBackward0"


def test_in_half_precision_as_in_pytorchs_layers(as_on_a_gpu):
    net, x = settled(ResNet), images(8)
    exact, twin = copy.deepcopy(net).double(), copy.deepcopy(net)
    expected = exact(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        theirs = twin(x)
        with accelerate(net):
            ours = net(x)
    assert ours.dtype == torch.bfloat16
    assert (ours - expected).abs().max() < 2 * (theirs - expected).abs().max() + 2**-6


class TestOnAGpu:
    pytestmark = needs_cuda

    @pytest.mark.parametrize("statistics", ["running", "batch"])
    @pytest.mark.parametrize("name", NETWORKS)
    def test_a_recorded_step_is_what_plain_layers_take(self, name, statistics, monkeypatch):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        theirs = settled(NETWORKS[name][0]).to("cuda", memory_format=torch.channels_last)
        ours, start = copy.deepcopy(theirs), copy.deepcopy(theirs.state_dict())
        exact = copy.deepcopy(theirs).double()
        x, y = images().cuda(), torch.arange(6, device="cuda") % 4

        def step(net):
            net.zero_grad()
            with split_batchnorm(net, 4, statistics):
                loss = cross_entropy(net(x.to(next(net.parameters()).dtype)), y)
            loss.backward()

        with accelerate(ours):
            warm_up(partial(step, ours), torch.device("cuda"))
            graph, _ = record(partial(step, ours), torch.device("cuda"))
        ours.load_state_dict(start)
        graph.replay()
        step(theirs)
        step(exact)
        torch.cuda.synchronize()
        for (key, a), b, expected in zip(ours.named_parameters(), theirs.parameters(), exact.parameters(), strict=True):
            off, usual = ((one.grad.double() - expected.grad).norm() for one in (a, b))
            assert off <= 10 * usual + 1e-3 * expected.grad.norm(), key
        for (key, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=key)

    @pytest.mark.parametrize("name", NETWORKS)
    def test_a_network_in_half_precision_is_as_exact_as_in_pytorchs_layers(self, name):
        net = settled(NETWORKS[name][0]).eval()
        x = images(16)
        with torch.no_grad():
            exact = copy.deepcopy(net).double()(x.double())
            net.to("cuda", memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.bfloat16):
                theirs = net(x.cuda()).cpu()
                with accelerate(net):
                    ours = net(x.cuda()).cpu()
        assert (ours - exact).abs().max() < 2 * (theirs - exact).abs().max() + 1e-3
