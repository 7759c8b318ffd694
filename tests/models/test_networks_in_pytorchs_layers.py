"""Networks of our layers, against the same in PyTorch's."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from greedy_ensembles.models import VGG16BN, PreResNet
from greedy_ensembles.models.wide_resnet import WideBlock
from greedy_ensembles.training.working_copies import WorkingCopies

needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("depth", [8, 20, 47])
def test_networks_are_what_they_are_in_pytorchs_layers(depth, training, pytorchs):
    torch.manual_seed(0)
    ours = PreResNet(depth, channels=1).train(training)
    theirs = pytorchs.network(ours)
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
def test_wide_blocks_are_what_they_are_in_pytorchs_layers(inputs, width, stride, pytorchs):
    torch.manual_seed(0)
    ours = WideBlock(inputs, width, stride)
    theirs = pytorchs.block(ours, from_activated=True)
    x = torch.randn(2, inputs, 6, 6)
    assert torch.equal(ours(x), theirs(x))


class TestOnAGpu:
    pytestmark = needs_cuda

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

    @pytest.mark.parametrize("precise", [False, True])
    @pytest.mark.parametrize("kind", [(PreResNet, 8), (PreResNet, 20), (PreResNet, 47), (VGG16BN,)])
    def test_networks_predict_as_in_pytorchs_layers(self, kind, precise, monkeypatch, trained, pytorchs):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not precise)
        net = trained.network(*kind)
        x = torch.rand(9, 3, 32, 32)
        with torch.no_grad():
            exact = pytorchs.network(net).double()(x.double())
            found = net.cuda()(x.cuda().contiguous(memory_format=torch.channels_last)).cpu()
        allowed = 1e-4 * exact.abs().max() if precise else 3 * pytorchs.error_in_tf32(net.cpu(), x)
        assert (found - exact).abs().max() <= allowed
