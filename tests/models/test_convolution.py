"""Convolutions with a gradient by hand, against PyTorch's own, and what a GPU takes of them."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv2d

from greedy_ensembles.cuda_graphs import record, warm_up
from greedy_ensembles.models import convolution, convolution_function, kernels
from greedy_ensembles.models.convolution import Convolution
from greedy_ensembles.models.convolution_function import can_convolve, convolve, convolve_prediction
from greedy_ensembles.models.norm import NormReLU
from greedy_ensembles.models.norm_function import Given, can_predict

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
    inputs, outputs, height, width, side, stride, with_residual, with_norm, seed, trained
):
    draw = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(s, generator=draw) for s in ((2, inputs, height, width), (outputs, inputs, side, side)))
    expected = conv2d(x, weight, stride=stride, padding=side // 2)
    residual = torch.randn(expected.shape, generator=draw) if with_residual else None
    norm = trained.norm(outputs, seed) if with_norm else None
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
def test_the_layer_is_pytorchs_where_there_is_no_gpu(side, stride, trained):
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
        norm, again = trained.norm(4, 0).train(training), trained.norm(4, 0).train(training)
        assert torch.equal(ours(x, residual, norm), again(expected + residual))
        assert torch.equal(norm.running_mean, again.running_mean)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("kind", ["none", "plain", "hooked", "derived", "other"])
@pytest.mark.parametrize("training", [True, False])
def test_where_kernels_predict_the_layer_is_what_pytorchs_are(
    monkeypatch, stride, with_residual, kind, training, trained
):
    """What a GPU does, with the kernels' mathematics in PyTorch: nothing that follows a convolution is left out."""
    monkeypatch.setattr(convolution, "can_convolve", lambda *_: True)
    torch.manual_seed(0)
    layer = Convolution(3, 4, 3, stride)
    x = torch.randn(2, 3, 6, 5)
    seen = []
    norm = {"none": None, "other": nn.BatchNorm2d(4), "derived": Doubled(4)}.get(kind, trained.norm(4, 0))
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


class Doubled(NormReLU):
    def forward(self, x, shift=None):
        return 2 * super().forward(x, shift)


def test_what_a_prediction_is_normalised_by(trained):
    layer = trained.norm(4, 0)
    assert layer.given() == Given(layer.weight, layer.bias, layer.running_mean, layer.running_var, layer.eps)
    assert NormReLU(4).given() is None  # in training
    assert NormReLU(4, track_running_stats=False).eval().given() is None
    assert NormReLU(4, affine=False).eval().given() is None
    assert Doubled(4).eval().given() is None
    layer.register_forward_pre_hook(lambda *_: None)
    assert layer.given() is None


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
