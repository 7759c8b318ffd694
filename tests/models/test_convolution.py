"""Convolutions with a gradient by hand, against PyTorch's own, and the networks that use them."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import batch_norm, conv2d, cross_entropy
from torch.nn.utils import prune

from greedy_ensembles import tf32
from greedy_ensembles.cuda_graphs import record, warm_up
from greedy_ensembles.models import VGG16BN, PreResNet, convolution, convolution_function, kernels, norm_function
from greedy_ensembles.models.convolution import ConvNormReLU, Convolution, reads_narrow
from greedy_ensembles.models.convolution_function import can_convolve, convolve, convolve_prediction
from greedy_ensembles.models.half import SCALE, Narrow, narrow, narrow_weight
from greedy_ensembles.models.norm import NormReLU
from greedy_ensembles.models.norm_function import Given, can_predict
from greedy_ensembles.models.wide_resnet import WideBlock
from greedy_ensembles.training.working_copies import WorkingCopies

needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@given(
    n=st.integers(1, 3),
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 4),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    side=st.sampled_from([1, 3]),
    with_residual=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_gradient_by_hand_is_autograds(n, inputs, outputs, height, width, side, with_residual, seed):
    draw = torch.Generator().manual_seed(seed)
    shapes = [(n, inputs, height, width), (outputs, inputs, side, side)]
    shapes += [(n, outputs, height, width)] if with_residual else []
    leaves = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    expected = conv2d(*leaves[:2], padding=side // 2)
    expected = expected + leaves[2] if with_residual else expected
    found = convolve(*leaves)
    weights = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    theirs = torch.autograd.grad((expected * weights).sum(), leaves)
    ours = torch.autograd.grad((found * weights).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def _rounded(values):
    """Return values as half precision stores them, with the gradient of not having been rounded."""
    return values + (values.bfloat16().to(values) - values).detach()


def settled(channels, seed):
    """Return a layer as training leaves it: weights and statistics that are neither 0 nor 1."""
    draw = torch.Generator().manual_seed(seed)
    layer = NormReLU(channels, eps=0.3).eval()
    for values in (layer.weight.data, layer.bias.data, layer.running_mean):
        values.copy_(torch.randn(channels, generator=draw))
    layer.running_var.copy_(torch.rand(channels, generator=draw) + 0.1)
    return layer


@given(
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 4),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    side=st.sampled_from([1, 3]),
    stride=st.integers(1, 3),
    with_residual=st.booleans(),
    with_norm=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_predictions_in_strides_and_normalised_are_pytorchs_layers_in_turn(
    inputs, outputs, height, width, side, stride, with_residual, with_norm, seed
):
    draw = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(s, generator=draw) for s in ((2, inputs, height, width), (outputs, inputs, side, side)))
    expected = conv2d(x, weight, stride=stride, padding=side // 2)
    residual = torch.randn(expected.shape, generator=draw) if with_residual else None
    norm = settled(outputs, seed) if with_norm else None
    with torch.no_grad():
        found = convolve_prediction(x, weight, residual, stride, None if norm is None else Given.by(norm))
        expected = expected if residual is None else expected + residual
        expected = expected if norm is None else nn.BatchNorm2d.forward(norm, expected).relu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_residual_is_added_before_rounding():
    """256 + 1 + 1 in bfloat16, whose neighbour of 256 is 258: rounding in between would lose both ones."""
    x = torch.ones(1, 257, 1, 1, dtype=torch.bfloat16)
    weight, residual = torch.ones(1, 257, 1, 1, dtype=torch.bfloat16), torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    assert convolve(x, weight, residual).item() == 258
    assert (conv2d(x, weight) + residual).item() == 256


def test_gradients_that_nobody_asked_for_are_not_computed(monkeypatch):
    monkeypatch.delattr(convolution_function.TorchPasses, "input_gradient")
    x, weight = torch.randn(1, 3, 4, 4), torch.randn(2, 3, 3, 3, requires_grad=True)
    (of_weight,) = torch.autograd.grad(convolve(x, weight).sum(), weight)
    torch.testing.assert_close(
        of_weight, torch.autograd.grad(conv2d(x, weight, padding=1).sum(), weight)[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of PyTorch about itself
def test_compilers_see_through_it():
    torch.manual_seed(0)
    leaves = [torch.randn(s, requires_grad=True) for s in ((2, 3, 4, 4), (5, 3, 3, 3), (2, 5, 4, 4))]
    compiled = torch.compile(lambda *given: convolve(*given).square().sum(), backend="aot_eager", fullgraph=True)
    ours = torch.autograd.grad(compiled(*leaves), leaves)
    theirs = torch.autograd.grad(convolve(*leaves).square().sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_the_layer_is_pytorchs_where_there_is_no_gpu(side, stride):
    torch.manual_seed(0)
    ours = Convolution(3, 4, side, stride)
    torch.manual_seed(0)
    theirs = nn.Conv2d(3, 4, side, stride, side // 2, bias=False)
    assert list(ours.state_dict()) == ["weight"]
    assert torch.equal(ours.weight, theirs.weight)
    x = torch.randn(2, 3, 6, 5)
    expected = theirs(x)
    residual = torch.randn_like(expected)
    assert torch.equal(ours(x), expected)
    assert torch.equal(ours(x, residual), expected + residual)
    for training in (True, False):
        norm, again = settled(4, 0).train(training), settled(4, 0).train(training)
        assert torch.equal(ours(x, residual, norm), again(expected + residual))
        assert torch.equal(norm.running_mean, again.running_mean)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("kind", ["none", "plain", "hooked", "derived", "other"])
@pytest.mark.parametrize("training", [True, False])
def test_where_kernels_predict_the_layer_is_what_pytorchs_are(monkeypatch, stride, with_residual, kind, training):
    """What a GPU does, with the kernels' mathematics in PyTorch: nothing that follows a convolution is left out."""
    monkeypatch.setattr(convolution, "can_convolve", lambda *_: True)
    torch.manual_seed(0)
    layer = Convolution(3, 4, 3, stride)
    x = torch.randn(2, 3, 6, 5)
    seen = []
    norm = {"none": None, "other": nn.BatchNorm2d(4), "derived": Doubled(4)}.get(kind, settled(4, 0))
    if norm is not None:
        norm.train(training)
    if kind == "hooked":
        norm.register_forward_hook(lambda *_: seen.append(True))
    theirs = copy.deepcopy(norm)
    with torch.no_grad():
        expected = conv2d(x, layer.weight, stride=stride, padding=1)
        residual = torch.randn_like(expected) if with_residual else None
        expected = expected if residual is None else expected + residual
        expected = expected if theirs is None else theirs(expected)
        seen.clear()
        torch.testing.assert_close(layer(x, residual, norm), expected, rtol=1e-4, atol=1e-5)
    assert seen == [True] * (kind == "hooked")
    if norm is not None:
        torch.testing.assert_close(norm.running_mean, theirs.running_mean)
        assert norm.num_batches_tracked == theirs.num_batches_tracked


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the way that a GPU takes, with the kernels' mathematics in PyTorch, and return what convolutions saw.

    That is, for each: the types of what it read, left and added.
    """
    for module in (convolution, convolution_function, norm_function):
        monkeypatch.setattr(module, "can_launch", lambda _: True)
    output, seen = convolution_function.TorchPasses.output, []

    def spy(x, weight, residual, stride=1, given=None, dtype=None, unit=None):
        assert weight.dtype == x.dtype
        assert (unit is None) == (x.dtype != torch.float16)
        seen.append((x.dtype, dtype, None if residual is None else residual.dtype))
        y = output(x, weight, residual, stride, given, dtype, unit)
        return y.contiguous(memory_format=torch.channels_last)  # as the kernels leave it

    monkeypatch.setattr(convolution_function.TorchPasses, "output", staticmethod(spy))
    return seen


def predict(net, scale=1.0, allowed=True):
    x = scale * torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    dtype = next(net.parameters()).dtype
    with torch.no_grad(), tf32.set_inside(allowed):
        return net(x.to(dtype).contiguous(memory_format=torch.channels_last))


class TestStoredInHalf:
    """What is stored in half precision where TF32 is allowed, and what is not."""

    half, single = torch.float16, torch.float32

    @pytest.mark.parametrize("depth", [8, 47])
    def test_what_lies_between_a_norm_and_a_convolution(self, as_on_a_gpu, depth):
        """The image, what blocks pass on and what shortcuts add are in single precision, and so is the result."""
        net = with_statistics(PreResNet, depth)
        found = predict(net)
        half, single = self.half, self.single
        kept = [(half, half, None)] * (1 if depth == 8 else 2) + [(half, single, single)]
        shortcut = [(single, single, None)]
        first = kept if depth == 8 else [*kept[:-1], *shortcut, kept[-1]]
        later = [*kept[:-1], *shortcut, kept[-1]]
        blocks = len(net.blocks) // 3
        assert as_on_a_gpu == [*shortcut, *first, *kept * (blocks - 1), *2 * [*later, *kept * (blocks - 1)]]
        assert found.dtype == single
        exact = predict(plain_network(net).double())
        x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        assert 0 < (found - exact).abs().max() < 3 * error_of_tf32(net, x)

    @pytest.mark.parametrize("size", [1e-20, 1e-6, 1e4, 1e18])
    def test_weights_in_front_of_a_norm_may_have_any_size(self, as_on_a_gpu, size):
        net = with_statistics(PreResNet, 8)
        expected = predict(net)
        block = net.blocks[1]
        with torch.no_grad():
            block.conv1.weight *= size
            block.norm2.running_mean *= size
            block.norm2.running_var.add_(block.norm2.eps).mul_(size**2).sub_(block.norm2.eps)
        if 1e-6 < size < 1e6:  # else the norm's own numbers leave single precision
            torch.testing.assert_close(predict(net), expected, rtol=2**-9, atol=2**-9)
        stored, unit = narrow_weight(block.conv1.weight.detach())
        back = stored.double() * unit[:, None, None, None].double() * SCALE
        largest = block.conv1.weight.abs().amax(dim=(1, 2, 3), keepdim=True)
        assert ((back - block.conv1.weight).abs() <= 2**-11 * largest).all()

    def test_what_is_infinite_is_noticed(self, as_on_a_gpu):
        net = with_statistics(PreResNet, 8)
        net.blocks[1].norm2.weight.data[0] = float("inf")
        assert not predict(net).isfinite().any()

    def test_activations_up_to_a_hundred_thousand_are_as_exact_as_others(self, as_on_a_gpu):
        net = with_statistics(PreResNet, 8)
        exact = predict(plain_network(net).double(), scale=1e5)
        assert (predict(net, scale=1e5) - exact).abs().max() < 2**-8 * exact.abs().max()

    def test_not_where_tf32_is_forbidden_nor_under_autocast_nor_with_gradients(self, as_on_a_gpu, monkeypatch):
        net = with_statistics(PreResNet, 8)
        predict(net, allowed=False)
        assert len(as_on_a_gpu) == 9
        assert {kind for kinds in as_on_a_gpu for kind in kinds} == {self.single, None}
        layer = net.blocks[0].conv1
        x = torch.randn(1, 16, 4, 4).contiguous(memory_format=torch.channels_last)
        with tf32.set_inside(True):
            assert not reads_narrow(layer, x)
            with torch.no_grad():
                assert reads_narrow(layer, x)
                assert not reads_narrow(layer, x.bfloat16())
                assert not reads_narrow(layer, x.contiguous())
                assert not reads_narrow(Convolution(64, 65, 3), x)  # more channels than the kernels take
                assert not reads_narrow(nn.Conv2d(16, 16, 3), x)
                with monkeypatch.context() as patch:
                    patch.setattr(torch.compiler, "is_compiling", lambda: True)
                    assert not reads_narrow(layer, x)
                monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
                assert not reads_narrow(layer, x)

    @pytest.mark.parametrize("depth", [8, 47])
    @pytest.mark.parametrize("watched", ["norm1", "conv1", "norm2", "conv2", "norm3", "conv3", "all"])
    @pytest.mark.parametrize("how", ["hook", "pre-hook", "patch"])
    def test_who_looks_at_a_layer_sees_single_precision(self, as_on_a_gpu, depth, watched, how):
        net = with_statistics(PreResNet, depth)
        expected, seen = predict(net), []
        assert as_on_a_gpu[1][0] == self.half
        if watched == "all":
            if how == "patch":
                pytest.skip("there is no patch of all layers")
            register = getattr(nn.modules.module, f"register_module_forward_{how.replace('-', '_')}")
            handle = register(lambda _layer, inputs, *_: seen.append(inputs[0].dtype))
            try:
                found = predict(net)
            finally:
                handle.remove()
        else:
            layer = getattr(net.blocks[0], watched, None)
            if layer is None:
                pytest.skip("basic blocks have two of each")
            if how == "hook":
                layer.register_forward_hook(lambda _layer, inputs, out: seen.extend([inputs[0].dtype, out.dtype]))
            elif how == "pre-hook":
                layer.register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0].dtype))
            else:
                own = layer.forward
                layer.forward = lambda x, *rest, **more: (seen.append(x.dtype), own(x, *rest, **more))[1]
            found = predict(net)
        assert seen
        assert set(seen) == {self.single}
        torch.testing.assert_close(found, expected, rtol=2**-8, atol=2**-8)

    def test_a_layer_that_the_kernels_do_not_take_widens_it(self):
        layer = Convolution(3, 4, 3)
        x = torch.randint(0, 9, (2, 3, 6, 6)).float()  # channels do not lie together
        with torch.no_grad():
            assert torch.equal(layer(Narrow(narrow(x))), layer(x))
            with pytest.raises(RuntimeError, match="type"):  # an error, which is PyTorch's to report
                layer(x.half())


class TestConvNormReLUAsOnAGpu:
    """Bias, BatchNorm and ReLU in one pass, in training and in predictions; not where one of them is watched."""

    @pytest.fixture
    def block(self):
        torch.manual_seed(0)
        block = ConvNormReLU(3, 4)
        nn.init.normal_(block.conv.bias)
        block.norm.load_state_dict(settled(4, 0).state_dict())
        return block

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
    def test_it_is_what_pytorchs_layers_are(self, as_on_a_gpu, block, training, layout):
        x = torch.randn(5, 3, 6, 6).contiguous(memory_format=layout)
        twin = nn.Sequential(copy.deepcopy(block.conv), plain(block.norm), nn.ReLU()).train(training)
        twin[1].eps = block.norm.eps
        with torch.no_grad():
            torch.testing.assert_close(block.train(training)(x), twin(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(block.norm.running_mean, twin[1].running_mean)

    @pytest.mark.parametrize("watched", ["conv", "norm"])
    def test_hooks_see_what_goes_in_and_comes_out(self, as_on_a_gpu, block, watched):
        x, seen = torch.randn(5, 3, 6, 6), []
        layer = getattr(block.eval(), watched)
        layer.register_forward_hook(lambda _layer, inputs, output: seen.append((inputs, output)))
        with torch.no_grad():
            convolved = conv2d(x, block.conv.weight, block.conv.bias, padding=1)
            block(x)
        ((inputs, output),) = seen
        assert len(inputs) == 1
        torch.testing.assert_close(output if watched == "conv" else inputs[0], convolved)

    def test_hooks_that_prepare_weights_are_called(self, as_on_a_gpu, block):
        prune.l1_unstructured(block.conv, "weight", 0.5)
        with torch.no_grad():
            block.conv.weight_orig.normal_()  # from which a hook makes the weight
            x = torch.randn(5, 3, 6, 6)
            expected = block.norm.eval()(
                conv2d(x, block.conv.weight_orig * block.conv.weight_mask, block.conv.bias, 1, 1)
            )
            torch.testing.assert_close(block.eval()(x), expected)

    @pytest.mark.parametrize("other", [nn.ReLU(), nn.GroupNorm(2, 4)])
    def test_other_layers_in_its_place(self, as_on_a_gpu, block, other):
        block.norm = other
        x = torch.randn(5, 3, 6, 6)
        with torch.no_grad():
            torch.testing.assert_close(block(x), other(block.conv(x)))


def error_of_tf32(net, x):
    """Return how far a network is from exact where factors of its convolutions have ten bits, and all else has many."""
    exact = plain_network(net).double()
    with torch.no_grad():
        expected = exact(x.double())
        for layer in exact.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.copy_(as_tf32(layer.weight))
                layer.register_forward_pre_hook(lambda _layer, inputs: as_tf32(inputs[0]))
        return (exact(x.double()) - expected).abs().max()


def as_tf32(values):
    """Return values with ten bits behind the point, rounded to the nearest."""
    bits = values.float().view(torch.int32) + 0x1000
    return (bits & ~0x1FFF).view(torch.float32).double()


def with_statistics(make_net, *depth):
    """Return a network as training leaves it: each norm's statistics are those of what it sees."""
    torch.manual_seed(0)
    net = make_net(*depth)
    for layer in net.modules():
        if isinstance(layer, NormReLU):
            layer.momentum = 1.0
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.uniform_(layer.weight, 0.3, 1.5)
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=0.3)
    with torch.no_grad():
        net(torch.rand(16, 3, 32, 32))
    return net.eval()


class Doubled(NormReLU):
    def forward(self, x, shift=None):
        return 2 * super().forward(x, shift)


def test_what_a_prediction_is_normalised_by():
    layer = settled(4, 0)
    assert layer.given() == Given(layer.weight, layer.bias, layer.running_mean, layer.running_var, layer.eps)
    assert NormReLU(4).given() is None  # in training
    assert NormReLU(4, track_running_stats=False).eval().given() is None
    assert NormReLU(4, affine=False).eval().given() is None
    assert Doubled(4).eval().given() is None
    layer.register_forward_pre_hook(lambda *_: None)
    assert layer.given() is None


class Plain(nn.Module):
    """A block as it would be written with PyTorch's layers, on the weights of one of ours."""

    def __init__(self, block, from_activated):
        super().__init__()
        self.from_activated = from_activated
        for name, layer in block.named_children():
            setattr(self, name, plain(layer))

    def forward(self, x):
        active = self.norm1(x).relu()
        change = self.conv2(self.norm2(self.conv1(active)).relu())
        if hasattr(self, "conv3"):
            change = self.conv3(self.norm3(change).relu())
        shortcut = getattr(self, "shortcut", None)
        source = active if self.from_activated and shortcut is not None else x
        return change + (source if shortcut is None else shortcut(source))


def plain(layer):
    """Return PyTorch's own layer with the same settings and weights."""
    if isinstance(layer, nn.Conv2d):
        twin = nn.Conv2d(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, bias=False
        )
    elif isinstance(layer, nn.BatchNorm2d):
        twin = nn.BatchNorm2d(layer.num_features)
    else:
        return copy.deepcopy(layer)
    twin.load_state_dict(layer.state_dict())
    return twin


def plain_network(net):
    twin = copy.deepcopy(net)
    if isinstance(net, VGG16BN):
        for at, block in enumerate(net.features):
            if isinstance(block, ConvNormReLU):
                twin.features[at] = nn.Sequential(copy.deepcopy(block.conv), plain(block.norm), nn.ReLU())
        return twin.train(net.training)
    twin.first = plain(net.first)
    twin.blocks = nn.Sequential(*(Plain(block, from_activated=False) for block in net.blocks))
    return twin.train(net.training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("depth", [8, 20, 47])
def test_networks_are_what_they_are_in_pytorchs_layers(depth, training):
    torch.manual_seed(0)
    ours = PreResNet(depth, channels=1).train(training)
    theirs = plain_network(ours)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, y = torch.randn(3, 1, 12, 12), torch.arange(3)
    logits = [net(x) for net in (ours, theirs)]
    assert torch.equal(*logits)
    for found in logits:
        cross_entropy(found, y).backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))


@pytest.mark.parametrize(("inputs", "width", "stride"), [(16, 16, 1), (16, 20, 1), (16, 20, 2)])
def test_wide_blocks_are_what_they_are_in_pytorchs_layers(inputs, width, stride):
    torch.manual_seed(0)
    ours = WideBlock(inputs, width, stride)
    theirs = Plain(ours, from_activated=True)
    x = torch.randn(2, inputs, 6, 6)
    assert torch.equal(ours(x), theirs(x))


def on_a_gpu(shape, dtype=torch.bfloat16, layout=torch.channels_last):
    """Return a tensor that says it is on a GPU and has no values: what it takes to ask, on any machine."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda", memory_format=layout)


class TestWhatTheKernelsTake:
    half, single = torch.bfloat16, torch.float32

    @pytest.fixture(autouse=True)
    def _as_where_there_is_a_compiler(self, monkeypatch):
        monkeypatch.setattr(kernels, "has_kernels", lambda: True)

    def test_nothing_without_a_compiler(self, monkeypatch):
        monkeypatch.setattr(kernels, "has_kernels", lambda: False)
        assert not self.asked()

    def test_norms_of_as_many_channels(self):
        with torch.no_grad():
            assert can_predict(NormReLU(16), on_a_gpu((2, 16, 8, 8)))
            assert not can_predict(NormReLU(16), on_a_gpu((2, 32, 8, 8)))  # an error, which is PyTorch's to report

    def asked(self, x=(2, 16, 8, 8), weight=(16, 16, 3, 3), residual=None, dtype=half, layout=torch.channels_last):
        given = on_a_gpu(x, dtype, layout), on_a_gpu(weight, dtype)
        return can_convolve(*given, None if residual is None else on_a_gpu(residual, dtype), dtype)

    def test_the_shapes_of_residual_networks(self):
        assert self.asked()
        assert self.asked(residual=(2, 16, 8, 8))
        assert self.asked(x=(2, 1, 28, 28), weight=(16, 1, 3, 3))
        assert self.asked(x=(2, 256, 8, 8), weight=(64, 256, 1, 1))

    @pytest.mark.parametrize(
        "other",
        [
            {"layout": torch.contiguous_format},
            {"dtype": torch.float16},
            {"x": (2, 160, 8, 8), "weight": (160, 160, 3, 3)},  # of a wide network
            {"weight": (16, 16, 5, 5)},
            {"weight": (16, 8, 3, 3)},  # an error, which is PyTorch's to report
            {"x": (0, 16, 8, 8)},
            {"residual": (2, 16, 8, 4)},
            {"x": (2**15, 16, 64, 64)},  # more elements than 32 bits count
        ],
    )
    def test_not_others(self, other):
        assert not self.asked(**other)

    def test_weights_whose_taps_lie_anyhow_are_not_taken(self):
        with FakeTensorMode():
            weight = torch.empty(16, 16, 3, 3, dtype=self.half, device="cuda").transpose(2, 3)
        assert not can_convolve(on_a_gpu((2, 16, 8, 8)), weight, None, self.half)

    def test_single_precision_in_predictions(self):
        assert not self.asked(dtype=self.single)  # gradients are on
        with torch.no_grad():
            assert self.asked(dtype=self.single)
            assert self.asked()

    @pytest.mark.parametrize(("height", "taken"), [(4, True), (8, False)])
    def test_strides_in_predictions(self, height, taken):
        residual = on_a_gpu((2, 16, height, height))
        given = on_a_gpu((2, 16, 7, 8)), on_a_gpu((16, 16, 3, 3))
        assert not can_convolve(*given, None, self.half, stride=2)  # gradients are on
        with torch.no_grad():
            assert can_convolve(*given, None, self.half, stride=2)
            assert can_convolve(*given, residual, self.half, stride=2) == taken


class TestOnAGpu:
    pytestmark = needs_cuda

    def compare(self, layer, run, inputs, with_residual):
        """Hold output and gradients of a layer in half precision against double precision on the same numbers."""
        torch.manual_seed(0)
        x = torch.randn(6, inputs, 14, 14, device="cuda", dtype=torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        residual = torch.randn_like(layer(x.detach())) if with_residual else None
        found = run(x, residual)
        weights = torch.randn_like(found)
        ours = torch.autograd.grad(found, [x, layer.weight], weights)
        exact = [value.detach().double().requires_grad_() for value in (x, layer.weight.bfloat16())]
        expected = conv2d(*exact, padding=layer.padding)
        theirs = torch.autograd.grad(expected, exact, weights.double())
        expected = expected if residual is None else expected + residual.double()
        assert type(found.grad_fn).__name__ == "_ConvolutionBackward"  # ours was used
        # A rounding of the result to bfloat16 is half of 2^-7 of it; sums in single precision are far below that.
        torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-4)
        torch.testing.assert_close(ours[0].double(), theirs[0], rtol=2**-8, atol=1e-4)
        torch.testing.assert_close(ours[1].double(), theirs[1], rtol=2**-8, atol=1e-3)

    @pytest.mark.parametrize(("inputs", "outputs", "side"), [(3, 16, 3), (16, 16, 3), (64, 64, 3), (64, 16, 1)])
    @pytest.mark.parametrize("with_residual", [True, False])
    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
    def test_the_layer_under_autocast(self, inputs, outputs, side, with_residual, layout):
        layer = Convolution(inputs, outputs, side).to("cuda", memory_format=layout)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            self.compare(layer, layer, inputs, with_residual)
        assert layer.weight.dtype == torch.float32

    @pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of PyTorch about itself
    def test_the_layer_compiled(self):
        layer = Convolution(16, 16, 3).to("cuda", memory_format=torch.channels_last)
        compiled = torch.compile(lambda x, r: layer(x, r) * 1.0, fullgraph=True)
        with torch.autocast("cuda", torch.bfloat16):
            x = torch.randn(4, 16, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
            residual = torch.randn_like(x, dtype=torch.bfloat16)
            leaves = [x, layer.weight]
            theirs = torch.autograd.grad(layer(x, residual).sum(), leaves)
            ours = torch.autograd.grad(compiled(x, residual).sum(), leaves)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)

    def test_a_network_trains_on_working_copies_as_under_autocast_and_the_same_every_time(self, monkeypatch):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # for the convolutions of stride 2

        def gradients(copied):
            torch.manual_seed(0)
            net = PreResNet(8, channels=1).to("cuda", memory_format=torch.channels_last)
            x, y = torch.randn(8, 1, 28, 28, device="cuda"), torch.arange(8, device="cuda")
            copies = WorkingCopies(net, torch.optim.SGD(net.parameters()))
            copies.refresh()
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                logits = (copies.call if copied else net)(x.contiguous(memory_format=torch.channels_last))
            cross_entropy(logits.float(), y).backward()
            if copied:
                copies.hand_back()
            return {name: p.grad for name, p in net.named_parameters()}

        first, again, cast = gradients(copied=True), gradients(copied=True), gradients(copied=False)
        convolutions = [name for name in first if "conv" in name and "blocks.0" in name]  # of stride 1
        assert convolutions
        for name in convolutions:
            assert torch.equal(first[name], again[name]), name
            assert torch.equal(first[name], cast[name]), name

    def test_the_layer_recorded(self):
        layer = Convolution(16, 16, 3).to("cuda", torch.bfloat16, memory_format=torch.channels_last)
        x = torch.randn(4, 16, 8, 8, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)

        def step(layer=layer):
            layer.weight.grad = None
            y = layer(x, x)
            y.backward(torch.ones_like(y))
            return y.detach(), layer.weight.grad

        warm_up(step, torch.device("cuda"))
        graph, recorded = record(step, torch.device("cuda"))
        with torch.no_grad():
            x.normal_()
            layer.weight.normal_()
        graph.replay()
        for a, b in zip(recorded, step(copy.deepcopy(layer)), strict=True):
            assert torch.equal(a, b)

    def test_predictions_in_single_precision_use_tf32_where_it_is_allowed(self, monkeypatch):
        torch.manual_seed(0)
        layer = Convolution(16, 16, 3).cuda()
        x = torch.randn(4, 16, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last)
        factors = x.double(), layer.weight.detach().double()
        exact = conv2d(*factors, padding=1)
        # Two factors, each cut to ten bits behind the point; sums in single precision are far more exact.
        most = 2**-9 * conv2d(*(value.abs() for value in factors), padding=1)
        with torch.no_grad():
            rounded = (layer(x) - exact).abs()
            monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
            unrounded = (layer(x) - exact).abs()
        assert (rounded <= most).all()
        assert unrounded.max() < 1e-5 < rounded.max()

    def test_the_first_layer_of_a_network_with_biases(self):
        torch.manual_seed(0)
        block = ConvNormReLU(3, 64)
        nn.init.normal_(block.conv.bias)
        x = torch.rand(8, 3, 14, 14).bfloat16()
        weight = block.conv.weight.detach().bfloat16().double().requires_grad_()
        # What is stored in between is rounded in the reference too: ReLU lets other elements pass where it is not.
        stored = _rounded(conv2d(x.double(), weight, padding=1))
        theirs = batch_norm(stored, None, None, block.norm.weight.double(), block.norm.bias.double(), True).relu()
        block = block.to("cuda", memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            between = block._without_bias(x.cuda().contiguous(memory_format=torch.channels_last))
            assert type(between.grad_fn).__name__ == "_ConvolutionBackward"  # ours was used
            ours = block(x.cuda().contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(ours.double().cpu(), theirs, rtol=2**-8, atol=2**-8)
        seen = torch.randn_like(theirs).bfloat16()
        (found,) = torch.autograd.grad(ours, block.conv.weight, seen.to(ours))
        (expected,) = torch.autograd.grad(theirs, weight, seen.double())
        assert (found.double().cpu() - expected).abs().max() < 0.02 * expected.abs().max()

    @pytest.mark.parametrize("precise", [False, True])
    @pytest.mark.parametrize("kind", [(PreResNet, 8), (PreResNet, 20), (PreResNet, 47), (VGG16BN,)])
    def test_networks_predict_as_in_pytorchs_layers(self, kind, precise, monkeypatch):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not precise)
        net = with_statistics(*kind)
        x = torch.rand(9, 3, 32, 32)
        with torch.no_grad():
            exact = plain_network(net).double()(x.double())
            found = net.cuda()(x.cuda().contiguous(memory_format=torch.channels_last)).cpu()
        allowed = 1e-4 * exact.abs().max() if precise else 3 * error_of_tf32(net.cpu(), x)
        assert (found - exact).abs().max() <= allowed
