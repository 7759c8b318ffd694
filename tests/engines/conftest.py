"""A CPU that goes a GPU's way."""

import pytest
from tests.engines.torch_passes import TorchPasses

from greedy_ensembles.engines import norm


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the way that a GPU takes, with the kernels' mathematics in PyTorch."""
    monkeypatch.setattr(norm, "can_launch", lambda _: True)
    monkeypatch.setattr(norm, "_kernels", lambda: TorchPasses)
