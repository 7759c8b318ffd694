"""The same promises on a GPU."""

import pytest
import torch
from torch import nn

import greedy_ensembles as ge

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(512, 3)
    )


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (120, 3, 8, 8), dtype=torch.uint8, generator=generator), torch.arange(120) % 3


RECIPE = ge.Recipe(epochs=3, batch_size=32, augment="flip_crop", normalize=(0.5, 0.25))


def test_it_trains_on_the_gpu_by_default_and_predicts_there(images):
    ensemble = ge.fit(network, images, size=2, strength=1.0, recipe=RECIPE, progress=False)
    assert next(ensemble[0].parameters()).is_cuda
    probs = ensemble.predict_proba(images[0])
    assert probs.device.type == "cpu"
    assert ensemble.predict_proba(images[0].cuda()).is_cuda
    torch.testing.assert_close(probs.sum(dim=2), torch.ones(2, 120))
    on_cpu = ensemble.to("cpu").predict_proba(images[0])
    torch.testing.assert_close(on_cpu, probs, atol=2e-3, rtol=0)


def test_data_may_already_be_on_the_gpu_and_generators_are_left_alone(images):
    torch.cuda.manual_seed(3)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(3)
    x, y = images
    ge.fit(network, (x.cuda(), y.cuda()), size=2, strength=1.0, recipe=RECIPE, progress=False)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_saved_on_the_gpu_and_loaded_on_the_cpu(images, tmp_path):
    ensemble = ge.fit(network, images, size=2, strength=1.0, recipe=RECIPE, progress=False)
    ensemble.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", network)
    assert not next(loaded[0].parameters()).is_cuda
    on_gpu = ge.Ensemble.load(tmp_path / "saved", network, device="cuda")
    assert torch.equal(on_gpu.predict_proba(images[0]), ensemble.predict_proba(images[0]))
