"""Swapped layers, in our networks and in others': the same numbers, and plain networks again afterwards."""

import copy
import random
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from greedy_ensembles.engines.accelerate import BatchNormReLU, accelerate, fusable
from greedy_ensembles.engines.graphs import record, warm_up
from greedy_ensembles.method import frozen_batchnorm, split_batchnorm
from greedy_ensembles.models import VGG16BN, PreResNet

needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


class Block(nn.Module):
    """As torchvision has it: one ReLU for all, a norm at the end of each branch."""

    def __init__(self, inputs, width, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 8), Block(8, 8))
        self.layer2 = nn.Sequential(Block(8, 16, 2), Block(16, 16))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


#: A network, how many of its norms are followed by ReLU alone, and how many ReLUs are left.
NETWORKS = {
    "PreResNet8": (partial(PreResNet, 8), 7, 0),
    "PreResNet47": (partial(PreResNet, 47), 46, 0),
    "VGG16BN": (VGG16BN, 13, 2),
    "ResNet": (ResNet, 5, 4),
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


def images(n=6, side=32, channels=3):
    x = torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last)


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
    make_net, norms, left = NETWORKS[name]
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
        assert sum(type(layer) is BatchNormReLU for layer in ours.modules()) == norms
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


def test_several_networks_at_once_and_one_inside_another():
    nets = [ResNet(), ResNet(), Called(FUSED["function"])]
    with accelerate(*nets[:2]), accelerate(nets[0], nets[2]):
        assert all(type(layer) is BatchNormReLU for layer in (nets[0].bn1, nets[1].bn1, nets[2].bn))
    assert all(type(layer) is nn.BatchNorm2d for layer in (nets[0].bn1, nets[1].bn1, nets[2].bn))


class TestOnAGpu:
    pytestmark = needs_cuda

    @pytest.mark.parametrize("statistics", ["running", "batch"])
    @pytest.mark.parametrize("name", NETWORKS)
    def test_a_recorded_step_is_what_plain_layers_take(self, name, statistics, monkeypatch):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        theirs = settled(NETWORKS[name][0]).to("cuda", memory_format=torch.channels_last)
        ours, start = copy.deepcopy(theirs), copy.deepcopy(theirs.state_dict())
        x, y = images().cuda(), torch.arange(6, device="cuda") % 4

        def step(net):
            net.zero_grad()
            with split_batchnorm(net, 4, statistics):
                loss = cross_entropy(net(x), y)
            loss.backward()

        with accelerate(ours):
            warm_up(partial(step, ours), torch.device("cuda"))
            graph, _ = record(partial(step, ours), torch.device("cuda"))
        ours.load_state_dict(start)
        graph.replay()
        step(theirs)
        torch.cuda.synchronize()
        for (key, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            size = b.grad.abs().max().item()
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-3 * size + 1e-6, msg=key)
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
