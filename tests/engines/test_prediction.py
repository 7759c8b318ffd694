"""What a member says of a batch; and of all members as one graph, on a GPU."""

import copy
import pickle
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.engines.execution import tf32_inside
from greedy_ensembles.engines.prediction import (
    _has_tensor_cores,
    _state,
    can_capture,
    channels_last,
    probabilities,
    switches,
)

needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def member():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3)
    )


@pytest.fixture
def ensemble():
    torch.manual_seed(0)
    return ge.Ensemble.from_members([member() for _ in range(3)], normalize=(0.5, 0.25))


@pytest.fixture
def x():
    return torch.randint(0, 256, (70, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_inputs_are_scaled_and_normalised_and_outputs_are_probabilities():
    one = nn.Linear(2, 3)
    images = torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8)
    logits = one((torch.tensor([[0.0, 1.0], [0.2, 0.4]]) - 0.5) / 0.25)
    expected = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    ensemble = ge.Ensemble.from_members([one], normalize=(0.5, 0.25))
    torch.testing.assert_close(ensemble.predict_proba(images), expected[None])


def test_precision_is_at_least_single_and_double_where_the_member_is():
    x = torch.randn(4, 2)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        probs = ge.Ensemble.from_members([nn.Linear(2, 3).to(dtype)]).predict_proba(x)[0]
        assert probs.dtype == expected
        torch.testing.assert_close(probs.sum(dim=1), torch.ones(4, dtype=expected))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_layout_reaches_the_layers_whatever_the_number_of_channels(channels):
    """By one channel alone PyTorch cannot tell the layouts apart but by its stride; it is a matter of rounding."""
    torch.manual_seed(0)
    one, seen = ge.models.PreResNet(8, channels=channels).eval(), []
    one.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = torch.rand(4, channels, 28, 28)
    with torch.no_grad():
        found = probabilities(one, channels_last(images))
        torch.testing.assert_close(found, probabilities(one, images))
    assert [x.is_contiguous(memory_format=torch.channels_last) for x in seen] == [True, False]


def test_images_lie_channels_last_where_convolutions_run_on_tensor_cores():
    images, table = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, 3)
    net = ge.models.PreResNet(8)
    for allowed in (True, False):
        with tf32_inside(allowed):
            assert _has_tensor_cores(net, images) == allowed
            assert not _has_tensor_cores(copy.deepcopy(net).double(), images)
            assert _has_tensor_cores(copy.deepcopy(net).bfloat16(), images)
            assert not _has_tensor_cores(net, table)
            assert not _has_tensor_cores(nn.Linear(8, 3), images)


def test_on_a_cpu_members_are_looped_over(ensemble, x):
    assert not can_capture(list(ensemble))
    assert ensemble._capture(probabilities, x, 8) is None
    assert torch.equal(ensemble.predict_proba(x, batch_size=8), copy.deepcopy(ensemble).predict_proba(x, batch_size=8))


@pytest.mark.parametrize("change", ["nothing", "numbers", "mode", "weight", "batch"])
def test_what_a_recording_is_of(ensemble, x, change):
    """Numbers may change where they lie; what lies elsewhere, and other kinds of batches, are recorded anew."""
    members, batch = list(ensemble), x[:8]
    before = _state(members, batch)
    if change == "numbers":
        with torch.no_grad():
            members[1][0].weight.add_(1)
    elif change == "mode":
        members[1][3].train()
    elif change == "weight":
        members[1][0].weight = nn.Parameter(members[1][0].weight + 1)
    elif change == "batch":
        batch = x[:9]
    assert (_state(members, batch) == before) is (change in ("nothing", "numbers"))


def test_switches_of_precision_are_noticed():
    before = switches()
    assert before == switches()
    with torch.autocast("cuda", torch.bfloat16) if torch.cuda.is_available() else autocast_for_cuda():
        assert switches() != before
    for allowed in (True, False):
        with tf32_inside(allowed):
            assert switches() != before  # convolutions may use it by default, products may not
    assert switches() == before


@contextmanager
def autocast_for_cuda():
    """Turn on autocast for a GPU that is not there."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


class TestOnAGpu:
    pytestmark = needs_cuda

    @pytest.mark.parametrize("kind", ["bytes", "floats", "array"])
    def test_it_is_what_the_loop_gives(self, ensemble, x, kind):
        given = {"bytes": x, "floats": x / 255, "array": x.numpy()}[kind]
        ensemble.to("cuda")
        expected = torch.cat([ensemble.predict_proba(given[i : i + 16]) for i in range(0, 70, 16)], dim=1)
        assert ensemble._captured is None  # batches of their own are too few to record
        found = ensemble.predict_proba(given, batch_size=16)  # four whole batches, and a rest
        assert ensemble._captured is not None
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    def test_logarithms_are_recorded_anew(self, ensemble, x):
        ensemble.to("cuda")
        probs = ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        found = ensemble.predict_log_proba(x, batch_size=16)
        assert ensemble._captured not in (None, recording)
        torch.testing.assert_close(found.exp(), probs, rtol=1e-5, atol=1e-6)

    def test_a_recording_that_is_there_serves_fewer_batches_than_would_pay_for_one(self, ensemble, x):
        ensemble.to("cuda")
        expected = ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        assert ensemble._capture(probabilities, x[:20], 16) is recording  # a batch, and a rest
        assert ensemble._capture(probabilities, x[:9], 16) is None  # less than a batch is sooner said without
        for rows in (20, 9):
            found = ensemble.predict_proba(x[:rows], batch_size=16)
            torch.testing.assert_close(found, expected[:, :rows], rtol=1e-5, atol=1e-6)

    def test_inputs_that_share_memory(self, ensemble, x):
        ensemble.to("cuda")
        same = x[:1].expand(70, -1, -1, -1)
        found = ensemble.predict_proba(same, batch_size=16)
        assert ensemble._captured is not None
        torch.testing.assert_close(found, found[:, :1].expand_as(found))

    def test_inside_and_outside_of_inference_mode(self, ensemble, x):
        ensemble.to("cuda")
        with torch.inference_mode():
            inside = ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        outside = ensemble.predict_proba(x, batch_size=16)
        assert ensemble._captured is recording is not None
        assert torch.equal(inside, outside)

    def test_autocast_is_recorded_anew(self, ensemble, x):
        ensemble.to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            rounded = ensemble.predict_proba(x, batch_size=16)
        expected = torch.cat([ensemble.predict_proba(x[i : i + 16]) for i in range(0, 70, 16)], dim=1)
        found = ensemble.predict_proba(x, batch_size=16)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(rounded, found)

    def test_a_recording_is_used_again_and_reads_the_weights_as_they_are(self, ensemble, x):
        ensemble.to("cuda")
        before = ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        with torch.no_grad():
            ensemble[1][0].weight.add_(1.0)
        after = ensemble.predict_proba(x, batch_size=16)
        assert ensemble._captured is recording
        assert torch.equal(before[0], after[0])
        assert not torch.allclose(before[1], after[1])

    def test_weights_that_lie_elsewhere_are_recorded_anew(self, ensemble, x):
        ensemble.to("cuda")
        ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        ensemble[1][0].weight = nn.Parameter(ensemble[1][0].weight + 1.0)
        found = ensemble.predict_proba(x, batch_size=16)
        assert ensemble._captured is not recording
        torch.testing.assert_close(found[1, :8], ensemble.predict_proba(x[:8])[1], rtol=1e-5, atol=1e-6)

    def test_a_network_that_takes_images_apart_is_recorded_in_the_usual_layout(self):
        class Viewing(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(16, 3)

            def forward(self, inputs):
                return self.last(self.conv(inputs).view(len(inputs), -1))

        torch.manual_seed(0)
        ensemble, x = ge.Ensemble.from_members([Viewing() for _ in range(2)]), torch.rand(70, 3, 4, 4)
        expected = ensemble.predict_proba(x)
        found = ensemble.to("cuda").predict_proba(x, batch_size=16)
        assert ensemble._captured is not None
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)

    @pytest.mark.parametrize("depth", [8, 47])
    def test_networks_of_ours_are_as_exact_as_their_precision_has_bits(self, depth):
        """TF32 has three bits more than bfloat16, so its errors are the smaller ones."""
        torch.manual_seed(0)
        members = [ge.models.PreResNet(depth) for _ in range(3)]
        x = torch.rand(70, 3, 32, 32)
        exact = ge.Ensemble.from_members([copy.deepcopy(one).double() for one in members]).predict_proba(x)
        errors = []
        for dtype in (torch.float32, torch.bfloat16):
            ensemble = ge.Ensemble.from_members([copy.deepcopy(one).to("cuda", dtype) for one in members])
            lie = [(p.data_ptr(), p.stride()) for one in ensemble for p in one.parameters()]
            errors.append((ensemble.predict_proba(x, batch_size=16) - exact).abs().max().item())
            assert ensemble._captured is not None
            assert [(p.data_ptr(), p.stride()) for one in ensemble for p in one.parameters()] == lie
        assert errors[0] < errors[1] < 0.25

    def test_what_tf32_allows_is_looked_at_again(self, monkeypatch):
        torch.manual_seed(0)
        members = [ge.models.PreResNet(8) for _ in range(2)]
        x = torch.rand(70, 3, 32, 32)
        exact = ge.Ensemble.from_members([copy.deepcopy(one).double() for one in members]).predict_proba(x)
        ensemble = ge.Ensemble.from_members(members).to("cuda")
        ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        found = ensemble.predict_proba(x, batch_size=16)
        assert ensemble._captured is not recording
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)

    def test_a_recording_of_ours_reads_the_weights_as_they_are(self, monkeypatch):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        ensemble = ge.Ensemble.from_members([ge.models.PreResNet(8).cuda() for _ in range(2)])
        x = torch.rand(70, 3, 32, 32)
        before = ensemble.predict_proba(x, batch_size=16)
        recording = ensemble._captured
        with torch.no_grad():
            ensemble[1].blocks[0].conv1.weight.normal_()
            ensemble[1].norm.running_mean.add_(1.0)
        after = ensemble.predict_proba(x, batch_size=16)
        assert ensemble._captured is recording
        assert torch.equal(before[0], after[0])
        torch.testing.assert_close(after[1, :16], ensemble.predict_proba(x[:16])[1], rtol=0, atol=1e-5)
        assert not torch.allclose(before[1], after[1], atol=1e-2)

    def test_members_that_cannot_be_recorded_are_looped_over(self, x):
        class Branching(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = nn.Linear(16, 3)

            def forward(self, inputs):
                return self.last(inputs.flatten(1) * (1 if float(inputs.mean()) > 0 else -1))

        ensemble = ge.Ensemble.from_members([Branching().cuda()])
        found = ensemble.predict_proba(x, batch_size=16)
        assert ensemble._captured is None
        torch.testing.assert_close(found[:, :16], ensemble.predict_proba(x[:16]))
        assert torch.rand(2, device="cuda").isfinite().all()  # the device is as well as before

    def test_it_is_copied_and_pickled_without_its_recording(self, ensemble, x):
        ensemble.to("cuda")
        expected = ensemble.predict_proba(x, batch_size=16)
        for twin in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
            assert twin._captured is None
            torch.testing.assert_close(twin.predict_proba(x, batch_size=16), expected)
