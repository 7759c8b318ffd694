"""The convolutional networks against figures worked out by hand from their papers."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from greedy_ensembles.models import MLP, VGG16BN, PreResNet, WideResNet28x10, named

#: The authors' WideResNet28x10: its parameters, and logits for weights and inputs that a formula gives.
REFERENCE = json.loads((Path(__file__).parents[1] / "fixtures" / "wide_resnet_reference.json").read_text())
NETWORKS = {
    "PreResNet8": partial(PreResNet, 8),
    "PreResNet20": partial(PreResNet, 20),
    "PreResNet47": partial(PreResNet, 47),
    "PreResNet164": partial(PreResNet, 164),
    "VGG16BN": VGG16BN,
    "WideResNet28x10": WideResNet28x10,
}


def count(model):
    return sum(p.numel() for p in model.parameters())


def basic_blocks(n, channels, classes):
    """Parameters of a PreResNet in basic blocks, summed by hand: convolutions without bias, BatchNorm 2 a channel."""
    total, inputs = 9 * channels * 16, 16
    for width in (16, 32, 64):
        for _ in range(n):
            total += 2 * inputs + 9 * inputs * width + 2 * width + 9 * width * width
            total += inputs * width if inputs != width else 0
            inputs = width
    return total + 2 * 64 + 64 * classes + classes


def bottlenecks(n, channels, classes):
    total, inputs = 9 * channels * 16, 16
    for width in (16, 32, 64):
        for _ in range(n):
            total += 2 * inputs + inputs * width + 2 * width + 9 * width**2 + 2 * width + 4 * width**2
            total += inputs * 4 * width if inputs != 4 * width else 0
            inputs = 4 * width
    return total + 2 * 256 + 256 * classes + classes


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes", [10, 100])
def test_parameters_of_preresnets(channels, classes):
    for n, depth in ((1, 8), (3, 20)):
        assert count(PreResNet(depth, classes, channels)) == basic_blocks(n, channels, classes)
    for n, depth in ((5, 47), (18, 164)):
        assert count(PreResNet(depth, classes, channels)) == bottlenecks(n, channels, classes)


def test_published_parameters():
    assert count(PreResNet(20)) == 272_282
    assert count(PreResNet(164)) == 1_703_258
    assert count(PreResNet(164, blocks_per_stage=27)) == bottlenecks(27, 3, 10)
    assert count(VGG16BN()) == 15_253_578
    assert round(count(WideResNet28x10()) / 1e6, 1) == 36.5
    assert count(MLP(2)) == (2 * 128 + 128) + (128 * 128 + 128) + (128 * 2 + 2)
    assert count(MLP(5, hidden=(), classes=3)) == 5 * 3 + 3


def test_layers_of_an_mlp_are_taken_as_those_of_a_sequential():
    model, x = MLP(2, hidden=(4,)), torch.randn(5, 2)
    torch.testing.assert_close(model[-1](model[:-1](x)), model(x))
    assert model[0] is next(model.children())
    assert len(model[:2]) == 2


@torch.no_grad()
def test_the_papers_wide_resnet_computes_what_the_authors_does():
    model = WideResNet28x10(published=True).double()
    assert count(model) == 36_489_290
    norms = [name for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)]
    for i, ((name, own), (_, shape)) in enumerate(
        zip(model.named_parameters(), REFERENCE["parameters"], strict=True)  # theirs have other names, in this order
    ):
        assert list(own.shape) == shape
        scale = math.sqrt(2 / own[0].numel()) if own.ndim > 1 else 0.1
        values = torch.sin(0.7 * torch.arange(own.numel(), dtype=torch.float64) + i) * scale
        module, _, kind = name.rpartition(".")
        own.copy_((values + (module in norms and kind == "weight")).view(shape))
    x = torch.sin(0.013 * torch.arange(4 * 3 * 32 * 32, dtype=torch.float64)).view(4, 3, 32, 32)
    for mode, expected in ((model.eval, REFERENCE["eval_logits"]), (model.train, REFERENCE["train_logits"])):
        mode()
        assert torch.allclose(model(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    found = [layer.momentum for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert found == [0.1] * 24 + [0.9]


def test_the_papers_wide_resnet_starts_as_pytorch_has_it():
    torch.manual_seed(0)
    for layer in WideResNet28x10(published=True).modules():
        if isinstance(layer, nn.Conv2d):  # uniform up to the root of 1 / inputs
            most = layer.weight[0].numel() ** -0.5
            assert 0.95 * most < layer.weight.abs().max().item() <= most
            assert layer.bias.any()
    assert count(WideResNet28x10()) < count(WideResNet28x10(published=True))


def test_block_kinds_change_at_depth_44_and_can_be_chosen():
    kinds = [type(PreResNet(depth).blocks[0]).__name__ for depth in (8, 38, 47, 164)]
    assert kinds == ["BasicBlock", "BasicBlock", "Bottleneck", "Bottleneck"]
    assert count(PreResNet(20, block="bottleneck")) == bottlenecks(2, 3, 10)
    assert count(PreResNet(56, block="basic")) == basic_blocks(9, 3, 10)
    assert len(PreResNet(164).blocks) == 3 * 18


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("size", "channels", "classes"), [(28, 1, 10), (32, 3, 7)])
def test_logits_for_both_image_sizes(name, size, channels, classes):
    model = NETWORKS[name](classes=classes, channels=channels).eval()
    assert model(torch.rand(2, channels, size, size)).shape == (2, classes)


def test_resolutions_halve_where_the_papers_say():
    shapes = {}
    for name, model in (("PreResNet20", PreResNet(20)), ("WideResNet28x10", WideResNet28x10())):
        sizes = []
        hooks = [
            block.register_forward_hook(lambda _, __, out, sizes=sizes: sizes.append(out.shape[1:]))
            for block in model.blocks
        ]
        model.eval()(torch.rand(1, 3, 32, 32))
        [hook.remove() for hook in hooks]
        shapes[name] = sizes
    assert shapes["PreResNet20"] == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3
    assert shapes["WideResNet28x10"] == [(160, 32, 32)] * 4 + [(320, 16, 16)] * 4 + [(640, 8, 8)] * 4


def test_vgg_pools_28_and_32_pixels_to_one():
    model = VGG16BN(channels=1).eval()
    for size, sides in ((32, [16, 8, 4, 2, 1]), (28, [14, 7, 4, 2, 1])):
        found, x = [], torch.rand(1, 1, size, size)
        for layer in model.features.eval():
            x = layer(x)
            if isinstance(layer, nn.MaxPool2d):
                found.append(x.shape[-1])
        assert found == sides


@pytest.mark.parametrize("name", NETWORKS)
def test_initialisation(name):
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            variance = 2 / (layer.kernel_size[0] ** 2 * layer.out_channels)
            draws = layer.weight.numel()
            # The variance of n normal draws has standard deviation variance * sqrt(2 / n); five of those.
            assert abs(layer.weight.var().item() - variance) < 5 * variance * (2 / draws) ** 0.5
            assert layer.bias is None or not layer.bias.any()
        elif isinstance(layer, nn.BatchNorm2d):
            assert bool((layer.weight == 1).all())
            assert not layer.bias.any()
        elif isinstance(layer, nn.Linear):  # PyTorch's own: uniform up to this
            most = layer.in_features**-0.5
            assert 0.99 * most < layer.weight.abs().max().item() <= most


def test_layers_are_pytorchs_own():
    for make_net in (*NETWORKS.values(), partial(MLP, 2)):
        for layer in make_net().modules():
            assert next(layer.children(), None) is not None or type(layer).__module__.startswith("torch.nn.modules.")


def test_shortcuts_carry_the_input_where_the_change_is_nothing():
    block = PreResNet(20).blocks[1].eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), x)


def test_names():
    assert count(named("PreResNet164", 100, 3)()) == bottlenecks(18, 3, 100)
    assert isinstance(named("VGG16BN", 10, 1)(), VGG16BN)
    assert isinstance(named("WideResNet28x10", 10, 3)(), WideResNet28x10)
    with pytest.raises(ValueError, match="did you mean 'VGG16BN'"):
        named("VGG16", 10, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 21}, "6n.2, got 21; the nearest is 20"),
        ({"depth": 160}, "9n.2, got 160; the nearest is 164"),
        ({"depth": 43}, "6n.2, got 43; the nearest is 47"),  # 44 would be in bottlenecks, and is none of theirs
        ({"depth": 43, "block": "basic"}, "6n.2, got 43; the nearest is 44"),
        ({"depth": 8, "block": "bottleneck"}, "9n.2, got 8; the nearest is 11"),
    ],
)
def test_a_depth_that_is_none_gets_the_nearest(arguments, message):
    with pytest.raises(ValueError, match=message):
        PreResNet(**arguments)
