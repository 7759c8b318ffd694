"""A convolution with a bias, BatchNorm and ReLU, in one pass behind the convolution."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d
from torch.nn.utils import prune

from greedy_ensembles.models.convolution import ConvNormReLU


@pytest.fixture
def block(trained):
    torch.manual_seed(0)
    block = ConvNormReLU(3, 4)
    nn.init.normal_(block.conv.bias)
    block.norm.load_state_dict(trained.norm(4, 0).state_dict())
    return block


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_it_is_what_pytorchs_layers_are(as_on_a_gpu, block, training, layout, pytorchs):
    x = torch.randn(5, 3, 6, 6).contiguous(memory_format=layout)
    twin = nn.Sequential(copy.deepcopy(block.conv), pytorchs.layer(block.norm), nn.ReLU()).train(training)
    twin[1].eps = block.norm.eps
    with torch.no_grad():
        torch.testing.assert_close(block.train(training)(x), twin(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(block.norm.running_mean, twin[1].running_mean)


@pytest.mark.parametrize("watched", ["conv", "norm"])
def test_hooks_see_what_goes_in_and_comes_out(as_on_a_gpu, block, watched):
    x, seen = torch.randn(5, 3, 6, 6), []
    layer = getattr(block.eval(), watched)
    layer.register_forward_hook(lambda _layer, inputs, output: seen.append((inputs, output)))
    with torch.no_grad():
        convolved = conv2d(x, block.conv.weight, block.conv.bias, padding=1)
        block(x)
    ((inputs, output),) = seen
    assert len(inputs) == 1
    torch.testing.assert_close(output if watched == "conv" else inputs[0], convolved)


def test_hooks_that_prepare_weights_are_called(as_on_a_gpu, block):
    prune.l1_unstructured(block.conv, "weight", 0.5)
    with torch.no_grad():
        block.conv.weight_orig.normal_()  # from which a hook makes the weight
        x = torch.randn(5, 3, 6, 6)
        expected = block.norm.eval()(conv2d(x, block.conv.weight_orig * block.conv.weight_mask, block.conv.bias, 1, 1))
        torch.testing.assert_close(block.eval()(x), expected)


@pytest.mark.parametrize("other", [nn.ReLU(), nn.GroupNorm(2, 4)])
def test_other_layers_in_its_place(as_on_a_gpu, block, other):
    block.norm = other
    x = torch.randn(5, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(block(x), other(block.conv(x)))


def _rounded(values):
    """Return values as half precision stores them, with the gradient of not having been rounded."""
    return values + (values.bfloat16().to(values) - values).detach()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_the_first_layer_of_a_network_with_biases_on_a_gpu():
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
