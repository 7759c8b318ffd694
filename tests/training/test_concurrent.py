"""The concurrent schedule: all members at once, each against the live outputs of those before it."""

import json
import random
import warnings

import numpy as np
import pytest
import torch
from greedy_ensembles.training.seeds import WEIGHTING_SET, generator
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.training import engines, memory, run_folder, schedule


def everything_random():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def with_batchnorm():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def noise(batch):
    """Augmentation that draws from all three global generators."""
    return batch + 0.01 * torch.randn_like(batch) + 0.01 * float(np.random.randn()) + 0.01 * random.gauss(0, 1)  # noqa: NPY002


def same(a, b):
    states = [(m.state_dict(), n.state_dict()) for m, n in zip(a, b, strict=True)]
    return all(torch.equal(value, theirs[name]) for ours, theirs in states for name, value in ours.items())


RECIPE = ge.Recipe(epochs=3, batch_size=16, augment=noise)
QUIET = {"progress": False, "device": "cpu"}
CONCURRENT = {"strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", **QUIET}


def test_deep_ensembles_are_the_same_in_both_schedules_bit_for_bit(blobs):
    """Members share no random number, although they take turns with the global generators."""
    options = {"size": 3, "method": "deep", "recipe": RECIPE, **QUIET}
    sequential, concurrent = (
        ge.fit(everything_random, blobs, schedule=s, **options) for s in ("sequential", "concurrent")
    )
    assert same(sequential, concurrent)


def test_groups_of_one_are_the_sequential_schedule_bit_for_bit(blobs):
    options = {"size": 3, "strength": 3.0, **QUIET}
    sequential = ge.fit(everything_random, blobs, recipe=RECIPE, **options)
    one = ge.Recipe(epochs=3, batch_size=16, augment=noise, members_at_once=1)
    assert same(sequential, ge.fit(everything_random, blobs, recipe=one, schedule="concurrent", **options))


def test_three_members_by_hand(blobs):
    """The schedule once more as a plain loop that shares no code with it, in double precision."""
    x, y = blobs[0].double(), blobs[1]

    def make_model():
        return with_batchnorm().double()

    recipe = ge.Recipe(epochs=2, batch_size=20, weighting_batch_size=7, lr=0.05, schedule="constant", weight_decay=0.01)
    ensemble = ge.fit(
        make_model, (x, y), size=3, strength=3.0, seed=4, recipe=recipe, validation=0, schedule="concurrent", **QUIET
    )
    mean, std = x.mean(0).float(), x.std(0, unbiased=False).float()
    samples = (torch.randn(60, 2, generator=generator(WEIGHTING_SET, 4)) * (5 * std) + mean).double()
    models, velocities = [], []
    for k in range(3):
        torch.manual_seed(4 + k)
        models.append(make_model())
        velocities.append([torch.zeros_like(p) for p in models[k].parameters()])
    step = 0
    for epoch in range(2):
        orders = [torch.randperm(60, generator=generator(3, 4 + k, epoch)) for k in range(3)]
        for start in range(0, 60, 20):
            chosen = torch.randint(60, (7,), generator=generator(2, 4, step))
            said, gradients = [], []
            for k, model in enumerate(models):
                batch = orders[k][start : start + 20]
                loss = nn.functional.cross_entropy(model.train()(x[batch]), y[batch])
                outputs = model.eval()(samples[chosen]).softmax(1)
                distances = [((outputs - other) ** 2).sum(1).mean() for other in said]
                if distances:
                    loss = loss + torch.log(sum(torch.exp(-(3.0 / 3) * d) for d in distances))
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
                said.append(outputs.detach())
            for model, velocity, gradient in zip(models, velocities, gradients, strict=True):
                with torch.no_grad():
                    for p, v, g in zip(model.parameters(), velocity, gradient, strict=True):
                        v.mul_(0.9).add_(g + 0.01 * p)
                        p -= 0.05 * v
            step += 1
    for model, member in zip(models, ensemble, strict=True):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-6, atol=1e-9)


def test_a_member_depends_on_no_later_one(blobs):
    # Their terms hold lambda_M / M: the same ratio at another size gives the same members.
    small, large = (
        ge.fit(with_batchnorm, blobs, size=m, strength=float(m), recipe=RECIPE, schedule="concurrent", **QUIET)
        for m in (2, 4)
    )
    assert same(small, large[:2])


def test_groups_are_trained_against_the_bank_of_those_before(blobs, tmp_path):
    """Five members in groups of two: members 1 and 2 as in a pair of their own, member 5 as an extension of four."""
    pairs = ge.Recipe(epochs=2, batch_size=16, members_at_once=2)
    options = {"strength": 5.0, "recipe": pairs, "schedule": "concurrent", **QUIET}
    five = ge.fit(with_batchnorm, blobs, size=5, **options)
    two = ge.fit(with_batchnorm, blobs, size=2, **{**options, "strength": 2.0})
    assert same(five[:2], two)
    last = ge.fit(with_batchnorm, blobs, size=5, earlier=five[:4], **options)
    assert same(five, last)


class Stop(Exception):
    pass


@pytest.mark.parametrize("where", [(1, 1), (3, 2), (4, 1), (5, 3)])
def test_an_interrupted_run_goes_on_to_the_same_weights(blobs, tmp_path, where):
    def stop(event):
        if (event.member, event.epoch) == where:
            raise Stop

    recipe = ge.Recipe(epochs=3, batch_size=16, augment=noise, members_at_once=3)
    options = {"size": 5, "strength": 2.0, "recipe": recipe, "schedule": "concurrent", **QUIET}
    whole = ge.fit(everything_random, blobs, **options)
    with pytest.raises(Stop):
        ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[stop], **options)
    resumed = ge.fit(everything_random, blobs, run_dir=tmp_path, **options)
    assert same(whole, resumed)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_kill_while_the_members_of_a_group_are_written_loses_none(blobs, tmp_path, monkeypatch):
    from greedy_ensembles.runs.folder import RunFolder

    options = {"size": 3, "strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", **QUIET}
    whole = ge.fit(everything_random, blobs, **options)
    add = RunFolder.add

    def dying(self, member):
        if member.number == 2:
            raise Stop
        add(self, member)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add", dying)
        with pytest.raises(Stop):
            ge.fit(everything_random, blobs, run_dir=tmp_path, **options)
    epochs = []
    resumed = ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[epochs.append], **options)
    assert epochs == []  # nothing is trained again
    assert same(whole, resumed)


def test_a_finished_run_is_extended_against_its_bank(blobs, tmp_path):
    options = {"strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", **QUIET}
    two = ge.fit(with_batchnorm, blobs, size=2, run_dir=tmp_path, **options)
    four = ge.fit(with_batchnorm, blobs, size=4, run_dir=tmp_path, **options)
    assert same(two, four[:2])
    assert len(four) == 4


@pytest.mark.parametrize(
    ("count", "less", "groups"),
    [(1, 0, [1, 1, 1, 1, 1]), (2, 1, [1, 1, 1, 1, 1]), (2, 0, [2, 2, 1]), (5, 1, [4, 1]), (5, 0, [5])],
)
def test_as_many_members_at_once_as_memory_holds(blobs, monkeypatch, count, less, groups):
    recipe = ge.Recipe(epochs=1, batch_size=16)
    # Weights, statistics (one a whole number of 8 bytes) and their copy of the best epoch; gradients and momentum.
    learning = 4 * (2 * 8 + 8 + 2 * 8 + 8 * 2 + 2)
    state = 2 * (learning + 4 * 2 * 8 + 8) + 2 * learning
    kept = 4 * (2 + 8 + 8)  # an input, BatchNorm's input, and ReLU's output, which is the last layer's input
    # Each has its state and its examples, four times; a pass of one at a time, as on a CPU, has its activations.
    each, once = state + 4 * 4 * 2 * 16, 1.25 * kept * 16
    monkeypatch.setattr(memory, "available_memory", lambda device: int(count * each + once) - less)
    found = []

    def listen(members, *others):
        found.append(len(members))
        return engines.make_engine(members, *others)

    monkeypatch.setattr(schedule, "make_engine", listen)
    ge.fit(with_batchnorm, blobs, size=5, method="deep", recipe=recipe, schedule="concurrent", **QUIET)
    assert found == groups


@pytest.mark.filterwarnings("ignore:.*members are trained in groups")
class TestTheSizeOfGroups:
    """It is decided once for the members that a run is asked for: in other groups they would become others."""

    @pytest.fixture
    def room_for(self, monkeypatch):
        """Let memory hold so many members."""

        def hold(count):
            for module in (memory, schedule):
                monkeypatch.setattr(module, "fitting_members", lambda problem: min(count, problem.size))

        return hold

    def stopped(self, blobs, folder, where=(1, 1), **options):
        def stop(event):
            if (event.member, event.epoch) == where:
                raise Stop

        with pytest.raises(Stop):
            ge.fit(everything_random, blobs, size=6, run_dir=folder, callbacks=[stop], **{**CONCURRENT, **options})

    def kept(self, folder):
        return json.loads((folder / "run.json").read_text()).get("members_at_once")

    def test_a_run_goes_on_in_those_that_it_was_begun_with(self, blobs, tmp_path, room_for):
        room_for(2)
        whole = ge.fit(everything_random, blobs, size=6, **CONCURRENT)
        self.stopped(blobs, tmp_path)
        room_for(4)
        resumed = ge.fit(everything_random, blobs, size=6, run_dir=tmp_path, **CONCURRENT)
        assert same(whole, resumed)
        assert not same(whole, ge.fit(everything_random, blobs, size=6, **CONCURRENT))  # in groups of four

    def test_it_does_not_go_on_where_the_next_group_does_not_fit(self, blobs, tmp_path, room_for):
        room_for(4)
        self.stopped(blobs, tmp_path)
        room_for(3)
        told = "this run goes on with 4 members together, and 3 fit into the memory that is free on cpu; free some"
        with pytest.raises(ValueError, match=told):
            ge.fit(everything_random, blobs, size=6, run_dir=tmp_path, **CONCURRENT)

    def test_what_is_left_may_need_less(self, blobs, tmp_path, room_for):
        room_for(4)
        self.stopped(blobs, tmp_path, where=(5, 1))  # of the second group, of two
        room_for(2)
        assert len(ge.fit(everything_random, blobs, size=6, run_dir=tmp_path, **CONCURRENT)) == 6
        room_for(1)
        assert len(ge.fit(everything_random, blobs, size=6, run_dir=tmp_path, **CONCURRENT)) == 6  # nothing is left

    def test_an_extension_is_in_groups_of_its_own(self, blobs, tmp_path, room_for):
        room_for(2)
        two = ge.fit(with_batchnorm, blobs, size=2, run_dir=tmp_path, **CONCURRENT)
        room_for(3)
        ge.fit(with_batchnorm, blobs, size=5, run_dir=tmp_path, **CONCURRENT)
        assert self.kept(tmp_path) == 3
        other = ge.fit(with_batchnorm, blobs, size=5, earlier=two, **CONCURRENT)  # in a group of three
        assert same(other, ge.load_run(tmp_path, with_batchnorm).ensemble)

    def test_a_folder_that_does_not_say_is_told(self, blobs, tmp_path, room_for):
        room_for(2)
        self.stopped(blobs, tmp_path)
        run = storage.read_json(tmp_path / "run.json")
        del run["members_at_once"]  # as older versions wrote it
        storage.write_json(tmp_path / "run.json", run)
        self.stopped(blobs, tmp_path, where=(3, 1))
        assert self.kept(tmp_path) == 2

    def test_more_than_fit_are_trained_in_smaller_groups_and_a_line_says_so(self, blobs, tmp_path, room_for):
        room_for(2)
        recipe = ge.Recipe(epochs=2, batch_size=16, augment=noise, members_at_once=4)
        told = "members_at_once is 4, but 2 fit into the memory that is free on cpu; members are trained in groups of 2"
        with pytest.warns(UserWarning, match=told):
            self.stopped(blobs, tmp_path, recipe=recipe)
        assert self.kept(tmp_path) == 2
        room_for(6)
        options = {**CONCURRENT, "recipe": recipe}
        assert len(ge.fit(everything_random, blobs, size=6, run_dir=tmp_path, **options)) == 6
        assert len(ge.fit(with_batchnorm, blobs, size=2, **options)) == 2  # of which there are but two

    def test_groups_that_nobody_asked_for_are_told_of_where_they_matter(self, blobs, tmp_path, room_for):
        room_for(2)
        told = "3 members are to train together, but 2 fit into the memory that is free on cpu; .* in groups of 2"
        with pytest.warns(UserWarning, match=told):
            ensemble = ge.fit(with_batchnorm, blobs, size=3, run_dir=tmp_path, **CONCURRENT)
        for one in (ensemble, ge.load_run(tmp_path, with_batchnorm).ensemble):
            assert one.notes["Training"] == "greedy, lambda_M = 2; concurrent schedule in groups of 2, seed 0"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ge.fit(with_batchnorm, blobs, size=5, run_dir=tmp_path, **CONCURRENT)  # two are left
            alone = {**CONCURRENT, "strength": None, "method": "deep"}
            ge.fit(with_batchnorm, blobs, size=3, **alone)  # whose weights are the same in any group


def test_states_that_take_long_to_write_are_saved_now_and_then_and_at_the_end(blobs, tmp_path, monkeypatch):
    """A kill then costs some epochs, which are trained again to the same weights."""
    monkeypatch.setattr(run_folder, "_BRIEF", -1.0)  # everything takes long
    monkeypatch.setattr(run_folder, "_PATIENCE", 1e9)
    recipe = ge.Recipe(epochs=5, batch_size=16, augment=noise)
    options = {"size": 2, "strength": 2.0, "recipe": recipe, "schedule": "concurrent", **QUIET}
    whole = ge.fit(everything_random, blobs, **options)
    saved = []
    write = run_folder.storage.write_tensors

    def listen(path, *others):
        saved.append(path.name)
        return write(path, *others)

    monkeypatch.setattr(run_folder.storage, "write_tensors", listen)
    heard = []

    def stop(event):
        heard.append((event.member, event.epoch))
        if heard[-1] == (2, 4):
            raise Stop

    with pytest.raises(Stop):
        ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[stop], **options)
    assert saved == ["checkpoint.safetensors"]  # of the first epoch
    heard.clear()
    resumed = ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[lambda e: heard.append(e.epoch)], **options)
    assert heard == [2, 2, 3, 3, 4, 4, 5, 5]
    assert saved.count("checkpoint.safetensors") == 3  # that, the first since it went on, and the last
    assert same(whole, resumed)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_events_count_what_is_done_of_the_run(blobs, at_once):
    done = []
    recipe = ge.Recipe(epochs=2, batch_size=30, members_at_once=at_once)
    options = {
        "recipe": recipe,
        "schedule": "concurrent",
        "callbacks": [lambda event: done.append(event.done)],
        **QUIET,
    }
    ge.fit(with_batchnorm, blobs, size=5, method="deep", **options)
    assert done == list(range(1, 5 * 2 + 1))


def test_members_at_once_is_told_to_mean_nothing_to_the_sequential_schedule(blobs):
    recipe = ge.Recipe(epochs=1, members_at_once=2)
    with pytest.warns(UserWarning, match="members_at_once=2 is for schedule='concurrent'"):
        ge.fit(with_batchnorm, blobs, size=2, method="deep", recipe=recipe, **QUIET)
