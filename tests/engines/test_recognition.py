"""Which layers are recognised as a norm and its ReLU, in anyone's network, and which are left alone."""

import copy
import random
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.engines.networks import ResNet, images
from torch import nn
from torch.nn import functional as F

from greedy_ensembles.engines.accelerate import BatchNormReLU, ConvolutionBeforeNorm, accelerate, swaps
from greedy_ensembles.method import TwoPasses


def fusable(net):
    """The norms of a network that are swapped."""
    return [layer for layer, kind in swaps(net) if kind is BatchNormReLU]


class Called(nn.Module):
    """A norm and, called in one of many ways, a ReLU."""

    def __init__(self, activate):
        super().__init__()
        self.bn, self.relu, self.activate = nn.BatchNorm2d(3), nn.ReLU(), activate

    def forward(self, x):
        return self.activate(self, self.bn(x))


FUSED = {
    "module": lambda net, y: net.relu(y),
    "function": lambda _, y: F.relu(y),
    "function in place": lambda _, y: F.relu(y, inplace=True),
    "torch": lambda _, y: torch.relu(y),
    "torch in place": lambda _, y: torch.relu_(y),
    "method": lambda _, y: y.relu(),
    "method in place": lambda _, y: y.relu_(),
    "and again": lambda _, y: (y.relu() - 0.5).relu(),
    "by keyword": lambda _, y: F.relu(input=y),
}
LEFT_ALONE = {
    "used twice": lambda _, y: torch.relu(y) + y,
    "used twice by ReLU": lambda _, y: torch.relu(y) + torch.relu(y),
    "not activated": lambda _, y: y * 2,
    "otherwise activated": lambda _, y: F.leaky_relu(y),
    "cut off at 6": lambda _, y: F.relu6(y),
    "changed in place": lambda _, y: y.add_(1.0).relu(),
    "returned": lambda _, y: (y, torch.relu(y))[1] + 0 * y,
    "remembered": lambda net, y: (setattr(net, "seen", y), torch.relu(y))[1],
    "remembered in a list": lambda net, y: (vars(net).setdefault("seen", []).append(y), torch.relu(y))[1],
    "not to be traced": lambda _, y: torch.relu(y) if y.sum() < 1e9 else y,
}


@pytest.mark.parametrize("way", [*FUSED, *LEFT_ALONE])
def test_whatever_comes_after_a_norm(way, as_on_a_gpu):
    net = Called((FUSED | LEFT_ALONE)[way])
    twin = Called(net.activate)
    assert len(fusable(net)) == (way in FUSED)
    x = 2 * images(4, 5) - 1
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    expected = twin(leaves[0])
    with accelerate(net):
        found = net(leaves[1])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(found)
    for result in (found, expected):
        (result * weights).sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-3, atol=1e-4)
    assert torch.allclose(net.bn.running_var, twin.bn.running_var)
    if "remembered" in way:
        saved = [net.seen, twin.seen] if way == "remembered" else [net.seen[-1], twin.seen[-1]]
        torch.testing.assert_close(*saved)


def test_what_is_changed_in_place_is_activated_again(as_on_a_gpu):
    net = Called(lambda _, y: y.relu().sub_(0.5).relu()).eval()
    x = 2 * images(4, 5) - 1
    with torch.no_grad():
        expected = net(x)
        with accelerate(net):
            torch.testing.assert_close(net(x), expected)


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) - 1


@pytest.mark.parametrize(
    "norm",
    [
        OwnNorm(3),
        nn.SyncBatchNorm(3),
        nn.InstanceNorm2d(3, affine=True),
        nn.utils.parametrizations.weight_norm(nn.BatchNorm2d(3), dim=None),
    ],
)
def test_norms_of_other_kinds_are_left_alone(norm):
    assert fusable(nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.ReLU())) == []


@pytest.mark.parametrize(
    "options", [{"track_running_stats": False}, {"affine": False}, {"momentum": None}, {"eps": 0.5, "momentum": 0.7}]
)
@pytest.mark.parametrize("training", [True, False])
def test_norms_of_all_settings_are_right(options, training, as_on_a_gpu):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU()).train(training)
    twin, x = copy.deepcopy(net), images(4, 6)
    for context in (nullcontext(), torch.no_grad()):
        with context, accelerate(net):
            torch.testing.assert_close(net(x), twin(x), rtol=1e-4, atol=1e-5)
    for key, value in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], value, msg=key)


@pytest.mark.parametrize("watched", ["1", "2", "0", ""])
def test_who_watches_sees_what_a_plain_network_shows(watched, as_on_a_gpu):
    """On a norm and its ReLU; on a convolution before it; on all, what goes in and comes out."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    seen = []
    net.get_submodule(watched).register_forward_hook(lambda _, given, result: seen.extend((*given, result.clone())))
    assert fusable(net) == ([net[1]] if watched in ("0", "") else [])
    x = images(4, 6)
    net(x)
    with accelerate(net):
        net(x)
    for a, b in zip(seen[:2], seen[2:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_block_that_is_watched_is_not_looked_into():
    net = ResNet()
    net.layer1[0].register_forward_pre_hook(lambda *_: None)
    assert len(fusable(net)) == 4
    shared = nn.Sequential(net.layer1[0], net.layer1[0].bn1, nn.ReLU())  # called inside, and outside
    assert fusable(shared) == []


def test_hooks_of_everybody_see_plain_networks():
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert fusable(ResNet()) == []
    finally:
        handle.remove()


class Unsteady(nn.Module):
    """Counts its calls and draws random numbers of all kinds."""

    def __init__(self):
        super().__init__()
        self.bn, self.calls = nn.BatchNorm2d(3), 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.count += 1
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
        return torch.relu(self.bn(x)) + noise


def test_looking_at_a_network_does_not_change_it_nor_what_is_drawn():
    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    def seed():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)

    net = Unsteady()
    seed()
    expected = drawn()
    seed()
    assert len(fusable(net)) == 1
    assert drawn() == expected
    assert net.calls == 0
    assert net.count == 0


def test_a_call_that_goes_another_way_is_refused(as_on_a_gpu):
    """It would get what is activated already: in an operation, in a list of others, or as a result."""

    class Undecided(nn.Module):
        otherwise = None

        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.bn(x)
            return torch.relu(y) if self.otherwise is None else self.otherwise(y)

    net, x = Undecided(), images(4, 5)
    with accelerate(net):
        net(x)
        for otherwise in (lambda y: y + 1, lambda y: torch.cat([x, y]), lambda y: y):
            net.otherwise = otherwise
            with pytest.raises(RuntimeError, match="cannot be accelerated"):
                net(x).sum()


@pytest.mark.parametrize("training", [True, False])
def test_what_is_activated_in_one_mode_alone_is_left_alone(training, as_on_a_gpu):
    def activate(net, y):
        return torch.relu(y) if net.training else y

    assert fusable(Called(activate).train(training)) == []


def test_a_part_that_only_one_mode_has_is_swapped(as_on_a_gpu):
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.aux = Called(FUSED["method"]), Called(FUSED["method"])

        def forward(self, x):
            x = self.first(x)
            return self.aux(x) if self.training else x

    assert len(fusable(Auxiliary())) == len(fusable(Auxiliary().eval())) == 2


def test_a_norm_that_is_used_twice_counts_twice(as_on_a_gpu):
    norm = nn.BatchNorm2d(3)
    net = nn.Sequential(norm, nn.ReLU(), norm, nn.ReLU())
    twin, x = copy.deepcopy(net), images(4, 5)
    with accelerate(net):
        torch.testing.assert_close(net(x), twin(x), rtol=1e-4, atol=1e-5)
    assert norm.num_batches_tracked == 2
    torch.testing.assert_close(norm.running_mean, twin[0].running_mean)


def test_several_networks_at_once_and_one_inside_another():
    nets = [ResNet(), ResNet(), Called(FUSED["function"])]
    with accelerate(*nets[:2]), accelerate(nets[0], nets[2]):
        assert all(type(layer) is BatchNormReLU for layer in (nets[0].bn1, nets[1].bn1, nets[2].bn))
    assert all(type(layer) is nn.BatchNorm2d for layer in (nets[0].bn1, nets[1].bn1, nets[2].bn))


def convolution(**changes):
    return nn.Sequential(nn.Conv2d(3, 3, 1, **changes), nn.BatchNorm2d(3), nn.ReLU())


def test_a_bias_is_left_to_the_norm_that_alone_gets_it():
    assert [kind for _, kind in swaps(convolution())] == [BatchNormReLU, ConvolutionBeforeNorm]
    assert [kind for _, kind in swaps(convolution(bias=False))] == [BatchNormReLU]
    watched = convolution()
    watched[0].register_forward_hook(lambda *_: None)
    assert [kind for _, kind in swaps(watched)] == [BatchNormReLU]

    class UsedTwice(nn.Sequential):
        def forward(self, x):
            y = self[0](x)
            return self[2](self[1](y)) + y

    assert [kind for _, kind in swaps(UsedTwice(*convolution()))] == [BatchNormReLU]


def test_whoever_else_gets_what_lacks_its_bias_gets_it_with_the_bias(as_on_a_gpu):
    class TwoWays(nn.Sequential):
        another = False

        def forward(self, x):
            y = self[0](x)
            return y * 2 if self.another else self[2](self[1](y))

    net, x = TwoWays(*convolution()), images(2, 5)
    net.another = True
    expected = net(x)
    theirs = torch.autograd.grad(expected.square().sum(), list(net[0].parameters()))
    net.another = False
    with accelerate(net):
        assert type(net[0]) is ConvolutionBeforeNorm
        net.another = True
        found = net(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), list(net[0].parameters())), theirs)


def test_statistics_that_are_recorded_count_the_bias(as_on_a_gpu):
    """In two passes, a hook of every norm looks at what it is given, and the second pass goes round the kernels."""
    plain = convolution()
    ours, x = copy.deepcopy(plain), images(6, 5)

    def outputs(net):
        passes = TwoPasses(net, "batch")
        with passes.of_examples():
            first = net(x[:4])
        with passes.of_samples():
            return [first, net(x[4:])]

    expected = [one.detach() for one in outputs(plain)]
    with accelerate(ours):
        found = [one.detach() for one in outputs(ours)]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1].running_mean, plain[1].running_mean)


def test_copies_do_not_look_through_what_was_copied_before(as_on_a_gpu):
    """A tensor is copied with all copies made so far beside it: looking there took most of the time to get ready."""

    def calls(layers):
        seen = 0

        def count(*_):
            nonlocal seen
            seen += 1

        net = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(layers)), nn.ReLU())
        with accelerate(net):
            sys.setprofile(count)
            try:
                copy.deepcopy(net)
            finally:
                sys.setprofile(None)
        return seen

    calls(1)
    ten, twenty, forty = (calls(layers) for layers in (10, 20, 40))
    assert forty - twenty < 2.5 * (twenty - ten)  # it grows with the number of tensors, not with its square
