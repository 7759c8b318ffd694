import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from greedy_ensembles import tf32
from greedy_ensembles.models import VGG16BN, PreResNet, kernels
from greedy_ensembles.models.convolution import Convolution
from greedy_ensembles.prediction import probabilities, wants_channels_last


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


def test_images_lie_channels_last_where_kernels_of_ours_want_them_so(monkeypatch):
    monkeypatch.setattr(kernels, "has_kernels", lambda: True)
    with FakeTensorMode():  # tensors that say they are on a GPU, on any machine
        images, table = torch.empty(2, 3, 8, 8, device="cuda"), torch.empty(2, 3, device="cuda")
    net, other = PreResNet(8), nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    with torch.no_grad():
        assert wants_channels_last(net, images)
        for allowed in (True, False):
            with tf32.set_inside(allowed):
                assert wants_channels_last(net, images)
                assert wants_channels_last(VGG16BN(), images) == allowed  # else cuDNN has no tensor cores for it
        assert not wants_channels_last(net, table)
        assert not wants_channels_last(other, images)
    assert not wants_channels_last(net, images)  # with gradients, single precision is for PyTorch's own


def test_images_lie_channels_last_on_a_cpu_where_networks_of_ours_are_narrow():
    images, seen = torch.rand(2, 3, 8, 8), []
    wide = PreResNet(8)
    wide.blocks[0].conv1 = Convolution(16, 320, 3)
    assert wants_channels_last(PreResNet(8), images)
    for member in (wide, VGG16BN(), nn.Conv2d(3, 4, 3)):
        assert not wants_channels_last(member, images)
    assert not wants_channels_last(PreResNet(8), torch.rand(2, 3))
    assert not wants_channels_last(PreResNet(8), images[:1])

    narrow = PreResNet(8)

    def traced(x):
        seen.append(wants_channels_last(narrow, x))
        return x

    torch.func.vmap(traced)(images[None])
    assert seen == [False]


def test_the_layout_of_images_is_a_matter_of_rounding():
    net, images = PreResNet(20).eval(), torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(probabilities(net, images, None), net(images).softmax(dim=1))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_reaches_the_layers_whatever_the_number_of_channels(channels):
    """By one channel alone PyTorch cannot tell the layouts apart but by its stride."""
    torch.manual_seed(0)
    member, seen = PreResNet(8, channels=channels).eval(), []
    member.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = torch.rand(4, channels, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(probabilities(member, images, None), member(images).softmax(dim=1))
    assert [x.is_contiguous(memory_format=torch.channels_last) for x in seen] == [True, False]
