import copy
import random
import weakref
from collections import deque
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.hidden_state import HiddenState
from greedy_ensembles.training import captured
from greedy_ensembles.training.captured import CannotCapture, Recorded


class Counter:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


#: Ways to remember: what is there at first, and what a call does to it.
IN_PYTHON = {
    "number": (0, lambda m: setattr(m, "number", m.number + 1)),
    "text": ("", lambda m: setattr(m, "text", m.text + "a")),
    "listed": ([0, [1]], lambda m: m.listed[1].append(2)),
    "queue": (deque([1, 2, 3]), lambda m: m.queue.popleft()),
    "table": ({"a": 0}, lambda m: m.table.update(a=m.table["a"] + 1)),
    "names": ({"a"}, lambda m: m.names.add(f"b{len(m.names)}")),
    "object": (Counter(), lambda m: m.object()),
    "host": (torch.zeros(()), lambda m: m.host.add_(1)),
    "average": (torch.zeros(2), lambda m: setattr(m, "average", 0.9 * m.average + 0.1)),
    "array": (np.zeros(2), lambda m: np.add(m.array, 1, out=m.array)),
    "python": (random.Random(0), lambda m: m.python.random()),
    "numpy": (np.random.default_rng(0), lambda m: m.numpy.random()),
    "older": (np.random.RandomState(0), lambda m: m.older.randint(4)),
    "scalar": (np.int64(0), lambda m: setattr(m, "scalar", m.scalar + 1)),
    "space": (SimpleNamespace(count=0), lambda m: setattr(m.space, "count", m.space.count + 1)),
    "slotted": (Slotted(), lambda m: setattr(m.slotted, "count", m.slotted.count + 1)),
    "torch": (torch.Generator(), lambda m: torch.rand(2, generator=m.torch)),
    "moved": (nn.Buffer(torch.zeros(2)), lambda m: setattr(m, "moved", m.moved + 1)),
}
#: Ways that are no obstacle: nothing, or in memory.
IN_MEMORY = {
    "nothing": (0, lambda m: None),
    "nan": (float("nan"), lambda m: None),
    "kept": (nn.Buffer(torch.zeros(2)), lambda m: m.kept.add_(1)),
    "passing": (nn.Buffer(torch.zeros(2), persistent=False), lambda m: m.passing.add_(1)),
    "features": (None, lambda m: setattr(m, "features", m.last(torch.ones(1, 2)))),  # of a graph that ends here
}


class Remembering(nn.Module):
    """Remembers in ways that are asked for."""

    def __init__(self, *ways):
        super().__init__()
        self.ways = ways
        self.last = nn.Linear(2, 2)
        for way in ways:
            setattr(self, way, copy.deepcopy((IN_PYTHON | IN_MEMORY)[way][0]))

    @torch.no_grad()
    def remember(self):
        for way in self.ways:
            with torch.enable_grad() if way == "features" else nullcontext():
                (IN_PYTHON | IN_MEMORY)[way][1](self)

    def forward(self, x):
        self.remember()
        return self.last(x)


def called(model):
    model(torch.ones(3, 2)).sum().backward()
    return model


def changed(before, after, owner="the model"):
    return HiddenState({owner: before}).why_not(HiddenState({owner: after}))


def comparable(model):
    """All that a model remembers, as text."""
    values = {way: getattr(model, way) for way in model.ways}
    values["object"], values["slotted"] = vars(values["object"]), values["slotted"].count
    values["python"], values["numpy"] = values["python"].getstate(), values["numpy"].bit_generator.state
    values["names"] = sorted(values["names"])  # the order of a set depends on what was in it before
    values["older"], values["torch"] = values["older"].get_state()[2], values["torch"].get_state().tolist()
    return repr(values)


@pytest.mark.parametrize("way", IN_PYTHON)
def test_what_python_changes_is_noticed(way):
    model = called(nn.Sequential(nn.Identity(), Remembering("nothing", way)))
    before = HiddenState({"the model": model})
    why = before.why_not(HiddenState({"the model": called(model)}))
    assert why.startswith("the model ")
    assert f"1.{way}" in why


@pytest.mark.parametrize("way", IN_MEMORY)
def test_what_changes_in_memory_is_no_obstacle(way):
    model = called(nn.Sequential(nn.Identity(), Remembering(way)))
    before = HiddenState({"the model": model})
    assert before.why_not(HiddenState({"the model": called(model)})) is None


def test_attributes_that_come_and_go_are_noticed():
    model = Remembering("nothing")
    before = HiddenState({"the model": model})
    model.new = 1
    after = HiddenState({"the model": model})
    assert "attribute new" in before.why_not(after)
    assert "attribute new" in after.why_not(before)


@pytest.mark.parametrize("name", ["PreResNet8", "PreResNet47", "VGG16BN"])
def test_our_networks_and_pytorchs_layers_hide_nothing(name):
    layers = nn.BatchNorm1d(10), nn.Dropout(), nn.GELU(), nn.Unflatten(1, (10, 1)), nn.LSTM(1, 2)
    model = nn.Sequential(ge.models.named(name, 10, 3)(), *layers)
    before = HiddenState({"the model": model})
    model(torch.rand(2, 3, 32, 32))[0].sum().backward()
    assert before.why_not(HiddenState({"the model": model})) is None


def counting_function():
    calls = 0

    def loss(logits, targets):
        nonlocal calls
        calls += 1
        return calls

    return loss


class Loss:
    def __init__(self):
        self.calls = 0

    def __call__(self, logits, targets):
        self.calls += 1
        return self.calls

    def method(self, logits, targets):
        return self(logits, targets)


@pytest.mark.parametrize(
    ("loss", "arguments"),
    [
        (counting_function(), (None, None)),
        (Loss(), (None, None)),
        (Loss().method, (None, None)),
        (partial(Loss(), None), (None,)),
        (partial(counting_function(), None), (None,)),
    ],
    ids=["closure", "object", "method", "partial of an object", "partial of a closure"],
)
def test_functions_that_count_are_noticed_and_set_back(loss, arguments):
    before = HiddenState({"the loss": loss})
    assert loss(*arguments) == 1
    assert "the loss changes its attribute calls" in before.why_not(HiddenState({"the loss": loss}))
    before.restore()
    assert before.why_not(HiddenState({"the loss": loss})) is None
    assert loss(*arguments) == 1


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss(), None, len, np.mean])
def test_functions_of_libraries_hide_nothing(loss):
    assert changed(loss, loss, "the loss") is None


class Frozen(dict):
    def update(self, *arguments):
        raise TypeError("frozen")


class Unspeakable:
    def __repr__(self):
        raise RuntimeError


class Kind(type):
    pass


def gone():
    """A reference to what is no more, which no question can be asked."""
    return weakref.proxy(Counter())


def for_inference():
    with torch.inference_mode():
        return torch.ones(2)


@pytest.mark.parametrize(
    "odd",
    [
        Frozen(a=1),
        Kind("Config", (), {}),
        np.broadcast_to(np.ones(1), (3,)),
        np.frombuffer(b"ab", np.uint8),
        random.SystemRandom(),
        {Unspeakable(): 1},
        {Unspeakable()},
        torch.tensor(0.5).expand(2),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        for_inference(),
        list(range(200_000)),
        [gone()],
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_odd_objects_are_neither_an_obstacle_nor_harmed(odd):
    model = Remembering("nothing")
    model.odd = [odd]
    state = HiddenState({"the model": model}, copies=True)
    assert state.why_not(HiddenState({"the model": model})) is None
    state.restore()
    assert model.odd[0] is odd


def test_a_set_of_weights_is_no_obstacle():
    model = Remembering("nothing")
    model.decayed, model.rates = {model.last.weight}, {model.last.weight: 0.1}
    before = HiddenState({"the model": model})
    model.last.weight.data += 1
    assert before.why_not(HiddenState({"the model": model})) is None


def test_what_refers_to_itself_has_an_end():
    model = Remembering("nothing")
    model.itself = [model, {"again": model}]
    assert changed(model, model) is None


def test_all_of_it_can_be_given_back():
    model = called(Remembering(*IN_PYTHON, "kept", "passing", "nan"))
    before, state = comparable(model), HiddenState({"the model": model}, copies=True)
    called(called(model)).new = 1
    assert comparable(model) != before
    state.restore()
    assert comparable(model) == before
    assert not hasattr(model, "new")


@pytest.fixture
def recorded(monkeypatch):
    """The logic of recording, with the runs before it on the CPU and without the recording itself."""
    graph = Mock()
    monkeypatch.setattr(captured, "warm_up", lambda run, device: (run(), run()))
    monkeypatch.setattr(captured, "record", lambda *arguments: (graph, None))

    def make(run, **watched):
        step, draws = Mock(run=run), Mock(lent=nullcontext)
        Recorded(step, watched, None, draws, torch.device("cpu"), None).play([], [], [0.1])
        return graph.replay.call_count

    return make


@pytest.mark.parametrize("way", ["number", "average", "listed"])
def test_a_model_that_python_changes_is_not_recorded(recorded, way):
    model = Remembering(way)
    with pytest.raises(CannotCapture, match="as it runs"):
        recorded(lambda: called(model), model=model)


def test_a_loss_that_python_changes_is_not_recorded(recorded):
    model, loss = Remembering("kept"), Loss()
    with pytest.raises(CannotCapture, match="loss changes its attribute calls"):
        recorded(lambda: (called(model), loss(None, None)), model=model, loss=loss)


def test_a_tensor_that_goes_back_and_forth_between_two_places_is_noticed(recorded):
    model, places = Remembering("nothing"), [torch.zeros(2), torch.zeros(2)]

    def run():
        model.last_seen = places[0]
        places.reverse()

    run()
    with pytest.raises(CannotCapture, match="another tensor in the place of its last_seen"):
        recorded(run, model=model)


def test_what_a_first_run_makes_for_later_ones_is_no_obstacle(recorded):
    class Lazy(Remembering):
        width = positions = None

        def forward(self, x):
            self.width = x.shape[1]
            if self.positions is None:
                self.positions = torch.arange(self.width)
            return super().forward(x + self.positions)

    model = Lazy("passing")
    before = HiddenState({"the model": model})
    assert recorded(lambda: called(model), model=model) == 1
    assert "attribute width" in before.why_not(HiddenState({"the model": model}))  # seen from before the first run


def test_what_is_done_once_is_not_recorded_since_training_would_lack_it(recorded):
    class Initialising(Remembering):
        ready = False

        def __init__(self):
            super().__init__("nothing")
            self.ready = False

        def forward(self, x):
            if not self.ready:
                self.last.weight.data.fill_(float(x.mean()))
                self.ready = True
            return super().forward(x)

    model = Initialising()
    with pytest.raises(CannotCapture, match="model changes its attribute ready"):
        recorded(lambda: called(model), model=model)
