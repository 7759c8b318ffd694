"""Where memory does not hold all: members train in smaller groups, and batches without gradients go in halves."""

import json
import weakref

import pytest
import torch
from tests.engines.groups import assert_same_members
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.plain import in_pieces

RECIPE = ge.Recipe(epochs=2, batch_size=16)
CONCURRENT = {"strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", "progress": False, "device": "cpu"}


class Room:
    """A device with room for so many members in training, and for so many inputs at once in prediction."""

    def __init__(self):
        self.members = self.inputs = 10**6
        self._inside = weakref.WeakSet()

    def __call__(self):
        """Make a model that lives there."""
        return Tenant(self)

    def enter(self, model, inputs):
        self._inside.add(model)
        in_training = sum(other.training for other in self._inside)
        if in_training > self.members if model.training else len(inputs) > self.inputs:
            raise torch.OutOfMemoryError("there is no more")


class Tenant(nn.Module):
    def __init__(self, room):
        super().__init__()
        self.room = room
        self.body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))

    def forward(self, x):
        self.room.enter(self, x)
        return self.body(x)


@pytest.fixture
def room():
    return Room()


def groups(events):
    """Return the sizes of groups, from the order of their epochs."""
    found = []
    for member, epoch in events:
        if epoch == 1 and (not found or found[-1][-1] != member - 1 or found[-1][0] is None):
            found.append([member])
        elif epoch == 1:
            found[-1].append(member)
        else:
            found[-1] = [None, *found[-1]] if found[-1][0] is not None else found[-1]
    return [sum(member is not None for member in group) for group in found]


@pytest.mark.filterwarnings("ignore:.* members do not fit on cpu together")
@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (3, [3, 2]), (4, [3, 2]), (5, [5])]
)
def test_groups_are_halved_until_memory_holds_them(blobs, room, count, expected):
    room.members = count
    heard = []
    ge.fit(room, blobs, size=5, callbacks=[lambda e: heard.append((e.member, e.epoch))], **CONCURRENT)
    assert groups(heard) == expected


@pytest.mark.filterwarnings("ignore:.* members do not fit on cpu together")
def test_they_are_the_members_of_groups_that_were_asked_for(blobs, room):
    asked = ge.Recipe(epochs=2, batch_size=16, members_at_once=3)
    expected = ge.fit(room, blobs, size=5, **{**CONCURRENT, "recipe": asked})
    room.members = 3
    assert_same_members(ge.fit(room, blobs, size=5, **CONCURRENT), expected)


def test_a_line_and_the_notes_say_so(blobs, room, tmp_path):
    room.members = 2
    for options in ({}, {"run_dir": tmp_path}):
        with pytest.warns(UserWarning, match="3 members .*not fit on cpu.* groups of 2"):
            ensemble = ge.fit(room, blobs, size=3, **options, **CONCURRENT)
        assert "concurrent schedule in groups of 2" in ensemble.notes["Training"]


def test_a_member_that_does_not_fit_alone_is_refused(blobs, room):
    room.members = 0
    for schedule in ("sequential", "concurrent"):
        with pytest.raises(ValueError, match=r"a member .*not fit on cpu.* batch_size or weighting_batch_size"):
            ge.fit(room, blobs, size=1, **{**CONCURRENT, "schedule": schedule})


def test_members_that_must_train_together_are_not_divided(blobs, room):
    room.members = 2
    with pytest.raises(ValueError, match=r"3 members have to train together.*cpu has no room"):
        ge.fit(room, blobs, size=3, method="repulsive", **CONCURRENT)


class Stop(Exception):
    pass


@pytest.mark.filterwarnings("ignore:.* members do not fit on cpu together")
class TestRunsKeepTheirGroups:
    """Their size is decided once for the members that a run is asked for: in other groups they would become others."""

    def stopped(self, room, blobs, folder, where=(1, 1)):
        def stop(event):
            if (event.member, event.epoch) == where:
                raise Stop

        with pytest.raises(Stop):
            ge.fit(room, blobs, size=5, run_dir=folder, callbacks=[stop], **CONCURRENT)

    def kept(self, folder):
        return json.loads((folder / "run.json").read_text()).get("members_at_once")

    def test_a_run_goes_on_in_those_that_it_was_begun_with(self, blobs, tmp_path, room):
        room.members = 2
        whole = ge.fit(room, blobs, size=5, **CONCURRENT)
        self.stopped(room, blobs, tmp_path)
        room.members = 5
        assert_same_members(whole, ge.fit(room, blobs, size=5, run_dir=tmp_path, **CONCURRENT))
        with pytest.raises(AssertionError):
            assert_same_members(whole, ge.fit(room, blobs, size=5, **CONCURRENT))

    def test_it_does_not_go_on_where_the_next_group_does_not_fit(self, blobs, tmp_path, room):
        room.members = 3
        self.stopped(room, blobs, tmp_path)
        room.members = 2
        with pytest.raises(ValueError, match=r"3 members have to train together.*cpu has no room"):
            ge.fit(room, blobs, size=5, run_dir=tmp_path, **CONCURRENT)

    def test_what_is_left_may_need_less(self, blobs, tmp_path, room):
        room.members = 3
        self.stopped(room, blobs, tmp_path, where=(4, 1))  # of the second group, of two
        room.members = 2
        assert len(ge.fit(room, blobs, size=5, run_dir=tmp_path, **CONCURRENT)) == 5
        room.members = 1
        assert len(ge.fit(room, blobs, size=5, run_dir=tmp_path, **CONCURRENT)) == 5  # nothing is left

    def test_an_extension_is_in_groups_of_its_own(self, blobs, tmp_path, room):
        room.members = 2
        two = ge.fit(room, blobs, size=2, run_dir=tmp_path, **CONCURRENT)
        room.members = 3
        ge.fit(room, blobs, size=5, run_dir=tmp_path, **CONCURRENT)
        assert self.kept(tmp_path) == 3
        other = ge.fit(room, blobs, size=5, earlier=two, **CONCURRENT)  # in a group of three
        assert_same_members(other, ge.load_run(tmp_path, room).ensemble)

    def test_a_folder_that_does_not_say_is_told(self, blobs, tmp_path, room):
        room.members = 2
        self.stopped(room, blobs, tmp_path)
        run = storage.read_json(tmp_path / "run.json")
        del run["members_at_once"]  # as older versions wrote it
        storage.write_json(tmp_path / "run.json", run)
        self.stopped(room, blobs, tmp_path, where=(3, 1))
        assert self.kept(tmp_path) == 2


@pytest.mark.parametrize("inputs", [1, 5, 40])
def test_predictions_of_more_inputs_than_fit_are_made_in_pieces(room, inputs):
    model, x = room().eval(), torch.randn(47, 2)
    expected = model(x)
    room.inputs, on_cpu = inputs, Execution(torch.device("cpu"))
    torch.testing.assert_close(in_pieces(model, x, on_cpu), expected)
    room.inputs = 0
    with pytest.raises(torch.OutOfMemoryError):
        in_pieces(model, x, on_cpu)


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_validation_and_bank_do_with_less_memory(blobs, room, schedule):
    options = {**CONCURRENT, "schedule": schedule, "validation": 0.3}
    expected = ge.fit(room, blobs, size=3, **options)
    room.inputs = 7
    assert_same_members(ge.fit(room, blobs, size=3, **options), expected, rtol=1e-4, atol=1e-6)
