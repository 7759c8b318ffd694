"""What is stored in half precision in predictions where TF32 is allowed, and what is not."""

import pytest
import torch
from torch import nn

from greedy_ensembles import tf32
from greedy_ensembles.models import PreResNet
from greedy_ensembles.models.convolution import Convolution, reads_narrow
from greedy_ensembles.models.half import SCALE, Narrow, narrow, narrow_weight

HALF, SINGLE = torch.float16, torch.float32


def predict(net, scale=1.0, allowed=True):
    x = scale * torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    dtype = next(net.parameters()).dtype
    with torch.no_grad(), tf32.set_inside(allowed):
        return net(x.to(dtype).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("depth", [8, 47])
def test_what_lies_between_a_norm_and_a_convolution(as_on_a_gpu, depth, trained, pytorchs):
    """The image, what blocks pass on and what shortcuts add are in single precision, and so is the result."""
    net = trained.network(PreResNet, depth)
    found = predict(net)
    kept = [(HALF, HALF, None)] * (1 if depth == 8 else 2) + [(HALF, SINGLE, SINGLE)]
    shortcut = [(SINGLE, SINGLE, None)]
    first = kept if depth == 8 else [*kept[:-1], *shortcut, kept[-1]]
    later = [*kept[:-1], *shortcut, kept[-1]]
    blocks = len(net.blocks) // 3
    assert as_on_a_gpu == [*shortcut, *first, *kept * (blocks - 1), *2 * [*later, *kept * (blocks - 1)]]
    assert found.dtype == SINGLE
    exact = predict(pytorchs.network(net).double())
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert 0 < (found - exact).abs().max() < 3 * pytorchs.error_in_tf32(net, x)


@pytest.mark.parametrize("size", [1e-20, 1e-6, 1e4, 1e18])
def test_weights_in_front_of_a_norm_may_have_any_size(as_on_a_gpu, size, trained):
    net = trained.network(PreResNet, 8)
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


def test_what_is_infinite_is_noticed(as_on_a_gpu, trained):
    net = trained.network(PreResNet, 8)
    net.blocks[1].norm2.weight.data[0] = float("inf")
    assert not predict(net).isfinite().any()


def test_activations_up_to_a_hundred_thousand_are_as_exact_as_others(as_on_a_gpu, trained, pytorchs):
    net = trained.network(PreResNet, 8)
    exact = predict(pytorchs.network(net).double(), scale=1e5)
    assert (predict(net, scale=1e5) - exact).abs().max() < 2**-8 * exact.abs().max()


def test_not_where_tf32_is_forbidden_nor_under_autocast_nor_with_gradients(as_on_a_gpu, monkeypatch, trained):
    net = trained.network(PreResNet, 8)
    predict(net, allowed=False)
    assert len(as_on_a_gpu) == 9
    assert {kind for kinds in as_on_a_gpu for kind in kinds} == {SINGLE, None}
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
def test_who_looks_at_a_layer_sees_single_precision(as_on_a_gpu, depth, watched, how, trained):
    net = trained.network(PreResNet, depth)
    expected, seen = predict(net), []
    assert as_on_a_gpu[1][0] == HALF
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
    assert set(seen) == {SINGLE}
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=2**-8)


def test_a_layer_that_the_kernels_do_not_take_widens_it():
    layer = Convolution(3, 4, 3)
    x = torch.randint(0, 9, (2, 3, 6, 6)).float()  # channels do not lie together
    with torch.no_grad():
        assert torch.equal(layer(Narrow(narrow(x))), layer(x))
        with pytest.raises(RuntimeError, match="type"):  # an error, which is PyTorch's to report
            layer(x.half())
