"""Memory: constant in the number of members with a run folder, and refused in time where it will not do."""

import dataclasses
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.training import memory
from greedy_ensembles.training.problem import pose

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


GIVEN = {
    "size": 2,
    "strength": 1.0,
    "recipe": ge.Recipe(epochs=1, batch_size=16, weighting_samples=2000),
    "validation": 0.5,
    "device": "cpu",
}
POSED = {"method": "greedy", "weighting": None, "distance": "probabilities", "seed": 0, "earlier": None}
MANY = torch.randn(4000, 2), torch.arange(4000) % 2


def room_for(rows, posed, at_once, margin):
    """Return as much memory as holds members and the activations of so many rows."""
    members = at_once * (posed.footprint.state + memory._inputs(posed))
    return lambda device: memory._fixed(posed) + members + int(margin * posed.footprint.row * rows)


@pytest.mark.parametrize(("schedule", "at_once"), [("sequential", 1), ("concurrent", 2)])
@pytest.mark.parametrize(("rows", "most"), [(100, 100), (32, 32), (10**6, 1024)])
def test_as_much_is_evaluated_at_once_as_memory_holds(monkeypatch, schedule, at_once, rows, most):
    """Otherwise a training that fits by its batch would end in its first evaluation."""
    seen = []

    class Watched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(2, 64), torch.nn.Linear(64, 2)

        def forward(self, x):
            seen.append(len(x))
            return self.last(self.first(x).relu())

    posed = pose(Watched, MANY, schedule=schedule, **GIVEN, **POSED)
    assert not posed.stackable
    monkeypatch.setattr(memory, "available_memory", room_for(rows, posed, at_once, 1.25))
    ge.fit(Watched, MANY, schedule=schedule, progress=False, **GIVEN)
    assert max(seen) == most


@pytest.mark.parametrize(("rows", "most"), [(200, 200), (1, 32), (10**6, 1024)])
def test_stacked_members_are_evaluated_together(make_model, monkeypatch, rows, most):
    posed = pose(make_model, MANY, schedule="concurrent", **GIVEN, **POSED)
    assert posed.stackable
    monkeypatch.setattr(memory, "available_memory", room_for(2 * rows, posed, 2, memory._STACKED_MARGIN))
    assert memory.with_evaluation_rows(posed, 2).evaluation_rows == most  # no less than a step has, which fits


def test_on_a_gpu_recorded_steps_keep_their_memory_from_evaluations(make_model, monkeypatch):
    posed = pose(make_model, MANY, schedule="concurrent", **GIVEN, **POSED)
    posed = dataclasses.replace(posed, device=torch.device("cuda"), stackable=False)
    state, step = posed.footprint.state, memory._activations(posed)
    members = memory._fixed(posed) + 2 * (state + memory._inputs(posed)) + 2 * step
    monkeypatch.setattr(memory, "available_memory", lambda device: members + 100 * 1.25 * posed.footprint.row + 1)
    assert memory.with_evaluation_rows(posed, 2).evaluation_rows == 100
    assert memory.fitting_members(posed) == 2
    monkeypatch.setattr(memory, "available_memory", lambda device: members + step - 1)
    assert memory.fitting_members(posed) == 1  # two would leave no room for an evaluation of as much as a step has
    one = memory._fixed(posed) + state + 2 * step
    for free, fits in ((one + 1, True), (one - 2, False)):
        monkeypatch.setattr(memory, "available_memory", lambda device, free=free: free)
        with nullcontext() if fits else pytest.raises(ValueError, match="one member needs"):
            memory.check_memory(posed)
    never = dataclasses.replace(posed, weighting=None, validation=posed.validation[:0])  # nothing is evaluated
    monkeypatch.setattr(memory, "available_memory", lambda device: state + memory._activations(never) + 1)
    memory.check_memory(never)


def test_where_nobody_says_what_is_free_the_usual_number_is_evaluated(make_model, monkeypatch):
    posed = pose(make_model, MANY, schedule="concurrent", **GIVEN, **POSED)
    monkeypatch.setattr(memory, "available_memory", lambda device: None)
    assert memory.with_evaluation_rows(posed, 2) == posed


STACKED = """
import torch
import greedy_ensembles as ge
from greedy_ensembles.training import memory
from greedy_ensembles.training.problem import pose

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:"))

torch.set_num_threads(1)
x = torch.randn(20_000, 2)
given = {
    "data": (x, (x[:, 0] > 0).long()), "size": 8, "method": "greedy", "strength": 1.0, "weighting": None,
    "distance": "probabilities", "recipe": ge.Recipe(epochs=1, batch_size=20_000, weighting_samples=20_000), "seed": 0,
    "validation": 0.0, "earlier": None, "schedule": "concurrent", "device": "cpu",
}
posed = pose(lambda: ge.models.MLP(2), **given)
assert posed.stackable
before = peak()
ge.fit(lambda: ge.models.MLP(2), progress=False, **given)
room = 8 * memory._activations(posed, memory._STACKED_MARGIN)
print(peak() - before, room)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say how much memory was used")
def test_stacked_members_need_no_more_than_is_counted_for_all_of_them():
    done = subprocess.run([sys.executable, "-c", STACKED], capture_output=True, text=True, check=True)
    used, counted = map(float, done.stdout.split())
    assert counted / 4 < used < 1.1 * counted


def test_stacked_members_are_trained_in_groups_where_memory_does_not_hold_all(blobs, make_model, quick, monkeypatch):
    posed = pose(
        make_model,
        blobs,
        size=6,
        method="deep",
        strength=None,
        weighting=None,
        distance="probabilities",
        recipe=quick["recipe"],
        seed=0,
        validation=0.1,
        earlier=None,
        schedule="concurrent",
        device="cpu",
    )
    each = posed.footprint.state + memory._inputs(posed) + memory._activations(posed, memory._STACKED_MARGIN)
    monkeypatch.setattr(memory, "available_memory", lambda device: int(3 * each) + 1)
    assert posed.stackable
    assert memory.fitting_members(posed) == 3


@pytest.mark.parametrize(("overflow", "bytes_a_number"), [("wrap", 1 + 4), ("none", 4 + 4)])
def test_samples_are_counted_as_they_are_drawn_and_stored(overflow, bytes_a_number):
    images = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8)
    posed = pose(
        lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)),
        (images, torch.arange(40) % 3),
        size=2,
        method="greedy",
        strength=1.0,
        weighting=ge.weighting.Gaussian.from_data(images, overflow=overflow),
        distance="probabilities",
        recipe=ge.Recipe(weighting_samples=100),
        seed=0,
        validation=0.0,
        earlier=None,
        schedule="sequential",
        device="cpu",
    )
    assert memory._fixed(posed) == 100 * 16 * bytes_a_number + memory._bank(posed)


def test_free_memory_is_a_plausible_number():
    assert 2**20 < memory.available_memory(torch.device("cpu")) < 2**50
