"""The concurrent schedule: all members at once, each against the live outputs of those before it."""

import random

import numpy as np
import pytest
import torch
from tests.engines.groups import assert_same_members
from torch import nn

import greedy_ensembles as ge


def everything_random():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def with_batchnorm():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def noise(batch):
    """Augmentation that draws from all three global generators."""
    return batch + 0.01 * torch.randn_like(batch) + 0.01 * float(np.random.randn()) + 0.01 * random.gauss(0, 1)  # noqa: NPY002


RECIPE = ge.Recipe(epochs=3, batch_size=16, augment=noise)
QUIET = {"progress": False, "device": "cpu"}
CONCURRENT = {"strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", **QUIET}


class Stop(Exception):
    pass


def stop_at(member, epoch):
    """Return a callback that ends training there."""

    def stop(event):
        if (event.member, event.epoch) == (member, epoch):
            raise Stop

    return stop


def test_deep_ensembles_are_the_same_in_both_schedules_bit_for_bit(blobs):
    """Members share no random number, although they take turns with the global generators."""
    options = {"size": 3, "method": "deep", "recipe": RECIPE, **QUIET}
    sequential, concurrent = (
        ge.fit(everything_random, blobs, schedule=s, **options) for s in ("sequential", "concurrent")
    )
    assert_same_members(sequential, concurrent)


def test_groups_of_one_are_the_sequential_schedule_bit_for_bit(blobs):
    options = {"size": 3, "strength": 3.0, **QUIET}
    sequential = ge.fit(everything_random, blobs, recipe=RECIPE, **options)
    one = ge.Recipe(epochs=3, batch_size=16, augment=noise, members_at_once=1)
    assert_same_members(sequential, ge.fit(everything_random, blobs, recipe=one, schedule="concurrent", **options))


def test_a_member_depends_on_no_later_one(blobs):
    # Their terms hold lambda_M / M: the same ratio at another size gives the same members.
    small, large = (
        ge.fit(with_batchnorm, blobs, size=m, strength=float(m), recipe=RECIPE, schedule="concurrent", **QUIET)
        for m in (2, 4)
    )
    assert_same_members(small, large[:2])


def test_groups_are_trained_against_the_bank_of_those_before(blobs, tmp_path):
    """Five members in groups of two: members 1 and 2 as in a pair of their own, member 5 as an extension of four."""
    pairs = ge.Recipe(epochs=2, batch_size=16, members_at_once=2)
    options = {"strength": 5.0, "recipe": pairs, "schedule": "concurrent", **QUIET}
    five = ge.fit(with_batchnorm, blobs, size=5, **options)
    two = ge.fit(with_batchnorm, blobs, size=2, **{**options, "strength": 2.0})
    assert_same_members(five[:2], two)
    last = ge.fit(with_batchnorm, blobs, size=5, earlier=five[:4], **options)
    assert_same_members(five, last)


@pytest.mark.parametrize("where", [(1, 1), (3, 2), (4, 1), (5, 3)])
def test_an_interrupted_run_goes_on_to_the_same_weights(blobs, tmp_path, where):
    recipe = ge.Recipe(epochs=3, batch_size=16, augment=noise, members_at_once=3)
    options = {"size": 5, "strength": 2.0, "recipe": recipe, "schedule": "concurrent", **QUIET}
    whole = ge.fit(everything_random, blobs, **options)
    with pytest.raises(Stop):
        ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[stop_at(*where)], **options)
    resumed = ge.fit(everything_random, blobs, run_dir=tmp_path, **options)
    assert_same_members(whole, resumed)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_failure_while_the_members_of_a_group_are_written_loses_none(blobs, tmp_path):
    options = {"size": 3, "strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", **QUIET}
    whole = ge.fit(everything_random, blobs, **options)
    obstacle = tmp_path / "members" / "02"

    def obstruct(event):
        if (event.member, event.epoch) == (3, RECIPE.epochs):  # all are trained, and none is written
            obstacle.parent.mkdir()
            obstacle.write_text("no folder can be made here")

    with pytest.raises(OSError, match="02"):
        ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[obstruct], **options)
    assert (tmp_path / "members" / "01" / "member.json").exists()
    obstacle.unlink()
    epochs = []
    resumed = ge.fit(everything_random, blobs, run_dir=tmp_path, callbacks=[epochs.append], **options)
    assert epochs == []  # nothing is trained again
    assert_same_members(whole, resumed)


def test_a_finished_run_is_extended_against_its_bank(blobs, tmp_path):
    options = {"strength": 2.0, "recipe": RECIPE, "schedule": "concurrent", **QUIET}
    two = ge.fit(with_batchnorm, blobs, size=2, run_dir=tmp_path, **options)
    four = ge.fit(with_batchnorm, blobs, size=4, run_dir=tmp_path, **options)
    assert_same_members(two, four[:2])
    assert len(four) == 4


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
