import copy
import shutil

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.method import TwoPasses, rows_stay_rows, split_batchnorm


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


class Reshaping(nn.Module):
    """Rows of the batch are no longer rows in front of BatchNorm."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(1), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.norm(x.reshape(-1, 1)).reshape(len(x), -1))


class Mixing(nn.Module):
    """Rows of the batch see each other outside of BatchNorm."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return self.last(x - x.mean(dim=0))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.BatchNorm1d(6, affine=False),
    )


LAYERS = {
    "plain": lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
    "cumulative": lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, momentum=None)),
    "without statistics": lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, track_running_stats=False)),
    "images": lambda: nn.Sequential(nn.Unflatten(1, (1, 1, 3)), nn.Upsample((4, 4)), convolutional()),
    "without BatchNorm": lambda: nn.Linear(3, 2),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_one_split_pass_is_two_passes(kind):
    """Outputs, gradients and statistics, over three steps so that the statistics matter."""
    torch.manual_seed(0)
    ours = LAYERS[kind]().double().train()
    theirs = copy.deepcopy(ours)
    for _ in range(3):
        first, others = torch.randn(6, 3).double(), 10 * torch.randn(4, 3).double() + 3
        with split_batchnorm(ours, 6):
            together = ours(torch.cat([first, others]))
        separate = theirs(first)
        with ge.frozen_batchnorm(theirs):
            separate = torch.cat([separate, theirs(others)])
        torch.testing.assert_close(together, separate)
        weights = torch.randn(together.shape).double()
        (together * weights).sum().backward()
        (separate * weights).sum().backward()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, msg=name)
        for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b, msg=name)
    assert [type(a) for a in ours.modules()] == [type(b) for b in theirs.modules()]  # left as found


@pytest.mark.parametrize("kind", LAYERS)
def test_networks_whose_rows_stay_rows(kind):
    torch.manual_seed(0)
    network = LAYERS[kind]().train()
    before = copy.deepcopy(network)
    assert rows_stay_rows(network, torch.randn(8, 3), 10 * torch.randn(8, 3))
    assert network.training
    for (name, a), b in zip(network.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("kind", [Reshaping, Mixing])
def test_networks_whose_rows_do_not(kind):
    torch.manual_seed(0)
    network = kind().train()
    before = copy.deepcopy(network.state_dict())
    assert not rows_stay_rows(network, torch.randn(8, 3), 10 * torch.randn(8, 3))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_dropout_does_not_stand_in_the_way_of_the_comparison(network):
    assert rows_stay_rows(network.train(), torch.randn(8, 3), torch.randn(8, 3))
    assert network[3].training


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


@pytest.mark.parametrize("passes", ["one pass", "two passes"])
@pytest.mark.parametrize("kind", LAYERS)
def test_by_the_statistics_of_the_first_rows(kind, passes):
    """Against the same network as if the others were there in eval mode, its running statistics those of the first."""
    torch.manual_seed(0)
    ours = LAYERS[kind]().double().train()
    first, others = torch.randn(6, 3).double(), 10 * torch.randn(4, 3).double() + 3
    before = statistics(ours)
    theirs = copy.deepcopy(ours)
    if passes == "one pass":
        with split_batchnorm(ours, 6, "batch"):
            found = ours(torch.cat([first, others]))
    else:
        both = TwoPasses(ours, "batch")
        with both.of_examples():
            logits = ours(first)
        with both.of_samples():
            found = torch.cat([logits, ours(others)])
        assert not any(layer._forward_pre_hooks for layer in ours.modules())
    torch.testing.assert_close(found[:6], theirs(first))
    for name, value in statistics(ours).items():
        torch.testing.assert_close(value, statistics(theirs)[name], msg=name)  # as without the others
    twin = copy.deepcopy(theirs)
    twin.load_state_dict({**twin.state_dict(), **before})
    expected, x, y = [], first, others  # layer by layer, on the statistics of what the first rows have become
    for layer in twin.modules():
        if isinstance(layer, nn.Sequential):
            continue
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            dims = [0, *range(2, x.ndim)]
            mean, std = x.mean(dims, keepdim=True), (x.var(dims, correction=0, keepdim=True) + layer.eps).sqrt()
            ones = (1, -1, *(1,) * (x.ndim - 2))
            scale = layer.weight.view(ones) if layer.affine else 1.0
            offset = layer.bias.view(ones) if layer.affine else 0.0
            x, y = ((value - mean) / std * scale + offset for value in (x, y))
        else:
            x, y = layer(x), layer(y)
    expected = torch.cat([x, y])
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape).double()
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for (name, p), q in zip(ours.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q[1].grad, msg=name)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
def test_lower_precision_differs_from_double_by_its_rounding(kind, layout):
    """As under autocast: images of that precision, weights and statistics of float32."""
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(4)
    nn.init.normal_(layer.weight)
    twin = copy.deepcopy(layer).double()
    images = (3 * torch.randn(12, 4, 5, 5) + 1).to(kind).contiguous(memory_format=layout)
    weights = torch.randn(images.shape).to(kind)
    found = []
    for network, x, w in ((layer, images, weights), (twin, images.double(), weights.double())):
        x = x.detach().requires_grad_()
        with split_batchnorm(network, 8, "batch"):
            output = network(x)
        (output * w).sum().backward()
        found.append([output, x.grad, network.weight.grad, network.bias.grad, network.running_var])
    assert found[0][0].dtype == kind
    for ours, theirs in zip(*found, strict=True):
        error = (ours.double() - theirs).abs().max() / theirs.abs().max()
        assert error < 4 * torch.finfo(kind).eps


def test_what_batchnorm_takes_out_of_the_examples_is_out_of_the_samples_as_well(network):
    """A bias, and the size of the weights: neither can make a member differ on p*; on running statistics both can."""
    x, samples = torch.randn(16, 3), 3 * torch.randn(16, 3)

    def gradients(mode):
        network.train().zero_grad()
        network[1].eps, network[3].p = 1e-12, 0.0
        with split_batchnorm(network, 16, mode):
            outputs = network(torch.cat([x, samples]))[16:].softmax(dim=1)
        ge.diversity_term(outputs, torch.full((1, 16, 2), 0.5), 1.0, 2).backward()
        along_weights = (network[0].weight.grad * network[0].weight.detach()).sum(dim=1)
        return network[0].bias.grad.abs().max(), along_weights.abs().max()

    torch.manual_seed(0)
    assert max(gradients("batch")) < 1e-6
    assert min(gradients("running")) > 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")  # of the compiler itself
@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiling for the CPU needs gcc")
@pytest.mark.parametrize("mode", ["running", "batch"])
def test_compiled_it_has_the_same_gradients(mode):
    """Compilers compute part of the forward pass again in the backward pass, when buffers have moved on."""
    torch.manual_seed(0)
    plain = LAYERS["plain"]().train()
    compiled = copy.deepcopy(plain)
    compiled.compile(dynamic=False)
    x = torch.randn(12, 3) + 1
    for network in (plain, compiled):
        with split_batchnorm(network, 8, mode):
            outputs = network(x)
        outputs.softmax(dim=1).square().sum().backward()
    for (name, p), q in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_a_batch_without_samples_is_one_of_examples():
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    split, plain = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    with ge.split_batchnorm(split, 6, "batch"):
        found = split(x)
    found.square().sum().backward()  # which ended the process
    plain(x).square().sum().backward()
    torch.testing.assert_close(found, torch.nn.BatchNorm1d(2)(x))
    for one, other in zip(split.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(split.running_mean, plain.running_mean)
