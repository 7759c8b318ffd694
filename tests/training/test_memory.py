"""Memory: constant in the number of members with a run folder, and refused in time where it will not do."""

import subprocess
import sys
from pathlib import Path

import pytest

import greedy_ensembles as ge
from greedy_ensembles.training import memory

PEAK = """
import sys
import torch
import greedy_ensembles as ge
torch.set_num_threads(1)
x, y = torch.randn(40, 2), torch.arange(40) % 2
ensemble = ge.fit(
    lambda: ge.models.MLP(2, hidden=(2000, 2000)), (x, y), size=int(sys.argv[1]), strength=1.0, run_dir=sys.argv[2],
    recipe=ge.Recipe(epochs=1, lr=0.001), progress=False, device="cpu",
)
assert len(ensemble) == int(sys.argv[1])
# Not ru_maxrss, which a process inherits from the one that started it.
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""
MODEL = 4 * (2 * 2000 + 2000 + 2000 * 2000 + 2000 + 2000 * 2 + 2)  # bytes of one model


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say how much memory was used")
def test_peak_memory_does_not_grow_with_the_number_of_members(tmp_path):
    def peak(size):
        command = [sys.executable, "-c", PEAK, str(size), str(tmp_path / str(size))]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    few, many = peak(3), peak(12)
    assert many - few < 4 * MODEL  # nine more members; the heap breathes by a model or two


def test_a_bank_beyond_memory_is_refused_with_its_size_and_the_remedy(blobs, make_model, tmp_path):
    recipe = ge.Recipe(weighting_samples=10**12)
    message = (
        r"1000000000000 samples of p\* and the bank of 5 members' outputs on them need 44703\.5 GiB "
        r"\(37252\.9 GiB for the bank\), and .* GiB are free on cpu; use a smaller p\* set: Recipe\(weighting_samples="
    )
    with pytest.raises(ValueError, match=message):
        ge.fit(make_model, blobs, size=5, strength=1.0, recipe=recipe, progress=False, device="cpu")


def test_what_is_free_decides(blobs, make_model, quick, monkeypatch):
    shared = 54 * (4 * 2) + 4 * 2 * 54 * 2  # samples of two numbers, and a row of two classes for each of two members
    state = 4 * 4 * (2 * 8 + 8 + 8 * 2 + 2)  # weights, gradients, momentum and the best epoch's
    row = 4 * (2 + 8)  # an input, and what ReLU and the second layer keep of it, which is one and the same
    needed = shared + int(state + 1.25 * row * (16 + 16))
    monkeypatch.setattr(memory, "available_memory", lambda device: needed)
    assert len(ge.fit(make_model, blobs, size=2, strength=1.0, **quick)) == 2
    monkeypatch.setattr(memory, "available_memory", lambda device: needed - 1)
    with pytest.raises(ValueError, match=r"one member needs .* use a smaller batch_size"):
        ge.fit(make_model, blobs, size=2, strength=1.0, **quick)
    monkeypatch.setattr(memory, "available_memory", lambda device: shared - 1)
    with pytest.raises(ValueError, match="use a smaller p"):
        ge.fit(make_model, blobs, size=2, strength=1.0, **quick)
    monkeypatch.setattr(memory, "available_memory", lambda device: None)  # a system that does not say
    assert len(ge.fit(make_model, blobs, size=2, strength=1.0, **quick)) == 2


def test_free_memory_is_a_plausible_number():
    import torch

    assert 2**20 < memory.available_memory(torch.device("cpu")) < 2**50
