"""An interrupt leaves gradient mode and generators as they were found, wherever it comes."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import greedy_ensembles as ge

X = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Interrupted(nn.Linear):
    """A model during whose n-th pass someone presses a key."""

    left = 0

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x):
        Interrupted.left -= 1
        if Interrupted.left == 0:
            raise KeyboardInterrupt
        return super().forward(x)


def found():
    numpy = np.random.get_state()  # noqa: NPY002
    return torch.is_grad_enabled(), torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2]


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_of_a_fit(schedule):
    recipe = ge.Recipe(epochs=2, batch_size=8)
    for at in (1, 4, 6, 9, 14, 20):
        Interrupted.left, before = at, found()
        with pytest.raises(KeyboardInterrupt):
            ge.fit(Interrupted, (X, Y), size=2, schedule=schedule, recipe=recipe, device="cpu", progress=False)
        assert found() == before, at


def test_of_a_prediction():
    ensemble = ge.Ensemble([Interrupted(), Interrupted()])
    for at in (1, 2, 3):
        Interrupted.left, before = at, found()
        with pytest.raises(KeyboardInterrupt):
            ensemble.predict_proba(X, batch_size=8)
        assert found() == before


def test_of_a_save(tmp_path, monkeypatch):
    def press(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", press)
    before = found()
    with pytest.raises(KeyboardInterrupt):
        ge.Ensemble([Interrupted()]).save(tmp_path / "saved")
    assert found()[0] == before[0]
    assert list(tmp_path.iterdir()) == []
