"""With how many threads of the CPU members are trained."""

import json

import pytest
import torch
from torch import nn

import greedy_ensembles as ge


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def large():
    return nn.Sequential(nn.Linear(2, 1300), nn.Linear(1300, 1300), nn.Linear(1300, 2))  # 1e8 for a batch of 60


def fit(make_model, blobs, quick, **options):
    """Train, and return the numbers of threads that torch had after each epoch."""
    seen = []
    callbacks = [lambda _: seen.append(torch.get_num_threads()), *options.pop("callbacks", ())]
    ge.fit(make_model, blobs, size=1, validation=0, callbacks=callbacks, **{**quick, **options})
    return seen


@pytest.mark.usefixtures("two_threads")
def test_small_networks_take_one_thread_and_give_the_others_back(make_model, blobs, quick, tmp_path):
    assert fit(make_model, blobs, quick, run_dir=tmp_path / "run") == [1, 1, 1]
    assert torch.get_num_threads() == 2
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["threads"] == 1
    assert run["device"].endswith(", 1 threads")


def test_large_ones_take_what_torch_has(blobs, quick):
    short = ge.Recipe(epochs=1, batch_size=60, lr=1e-6)
    assert fit(large, blobs, {**quick, "recipe": short}) == [1]  # as a user may have asked for
    torch.set_num_threads(2)
    try:
        assert fit(large, blobs, {**quick, "recipe": short}) == [2]
    finally:
        torch.set_num_threads(1)


def test_a_run_goes_on_with_those_that_it_began_with(make_model, blobs, quick, tmp_path, monkeypatch):
    def stop(event):
        if event.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("greedy_ensembles.engines.execution.FEW_MULTIPLICATIONS", 0)  # as if this were a large network
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            fit(make_model, blobs, quick, run_dir=tmp_path, callbacks=[stop])
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
    assert fit(make_model, blobs, quick, run_dir=tmp_path) == [2]
    assert torch.get_num_threads() == 1
