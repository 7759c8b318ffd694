import copy
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.training import captured
from greedy_ensembles.training.captured import CannotCapture, Recorded
from greedy_ensembles.training.hidden_state import hidden_state, restore


class Remembering(nn.Module):
    """Remembers in four ways, of which a recording repeats two: tensors that change where they lie."""

    def __init__(self, ways=("calls", "moved", "kept", "passing")):
        super().__init__()
        self.ways, self.calls = ways, 0
        self.last = nn.Linear(2, 2)
        self.register_buffer("moved", torch.zeros(2))
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, x):
        if "calls" in self.ways:
            self.calls += 1
        if "moved" in self.ways:
            self.moved = self.moved + 1
        if "kept" in self.ways:
            self.kept.add_(1)
        if "passing" in self.ways:
            self.passing.add_(1)
        return self.last(x + self.kept + self.passing)


def called(model):
    model(torch.ones(3, 2)).sum().backward()
    return model


@pytest.mark.parametrize(
    ("ways", "why"),
    [
        (["calls"], "attribute 1.calls as it runs"),
        (["moved"], "in the place of its buffer 1.moved"),
        (["kept", "passing"], None),
        ([], None),
    ],
)
def test_what_python_does_is_told_from_what_happens_in_memory(ways, why):
    model = nn.Sequential(nn.Identity(), Remembering(ways))
    before = hidden_state(model)
    found = before.why_not(hidden_state(called(model)))
    assert (found is None) if why is None else (why in found)


@pytest.mark.parametrize("name", ["PreResNet8", "PreResNet47", "VGG16BN"])
def test_our_networks_and_pytorchs_layers_hide_nothing(name):
    model = nn.Sequential(ge.models.named(name, 10, 3)(), nn.BatchNorm1d(10), nn.Dropout(), nn.GELU())
    before = hidden_state(model)
    model(torch.rand(2, 3, 32, 32)).sum().backward()
    assert before.why_not(hidden_state(model)) is None


def test_all_of_it_can_be_given_back():
    model = called(Remembering(("calls", "kept", "passing")))
    twin, state = copy.deepcopy(model), hidden_state(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    called(model)
    model.load_state_dict(weights)
    restore(model, state)
    assert model.calls == twin.calls == 1
    assert torch.equal(model(torch.ones(3, 2)), twin(torch.ones(3, 2)))


@pytest.mark.parametrize(("ways", "refused"), [(["calls"], True), (["moved"], True), (["passing"], False)])
def test_a_model_that_python_changes_is_not_recorded(monkeypatch, ways, refused):
    """The logic of recording, with the runs before it on the CPU and without the recording itself."""
    model, graph = Remembering(ways), Mock()
    monkeypatch.setattr(captured, "warm_up", lambda run, device: (run(), run()))
    monkeypatch.setattr(captured, "record", lambda *arguments: (graph, None))
    step, draws = Mock(run=lambda: called(model)), Mock(lent=nullcontext)
    with pytest.raises(CannotCapture, match="as it runs") if refused else nullcontext():
        Recorded(step, [model], None, draws, torch.device("cpu"), None).play([], [], [0.1])
    assert graph.replay.call_count == (0 if refused else 1)


def test_what_a_first_run_makes_for_later_ones_is_no_obstacle(monkeypatch):
    class Lazy(Remembering):
        width = None

        def forward(self, x):
            self.width = x.shape[1]
            return super().forward(x)

    model, graph = Lazy(()), Mock()
    before = hidden_state(model)
    monkeypatch.setattr(captured, "warm_up", lambda run, device: (run(), run()))
    monkeypatch.setattr(captured, "record", lambda *arguments: (graph, None))
    step, draws = Mock(run=lambda: called(model)), Mock(lent=nullcontext)
    Recorded(step, [model], None, draws, torch.device("cpu"), None).play([], [], [0.1])
    assert graph.replay.call_count == 1
    assert "attribute width" in before.why_not(hidden_state(model))  # which it would be, seen from before the first
