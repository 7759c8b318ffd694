"""Against the real files, where GREEDY_ENSEMBLES_DATA names a folder of them."""

import os

import pytest

import greedy_ensembles as ge
from greedy_ensembles.data import data_root
from greedy_ensembles.data.registry import find

pytestmark = pytest.mark.skipif(
    not os.environ.get("GREEDY_ENSEMBLES_DATA"), reason="GREEDY_ENSEMBLES_DATA names no folder of real data"
)

#: Means of the channels as they are widely quoted, of the complete split; pictures depend on how they were resized.
MEANS = {
    ("mnist", "train"): (0.1307,),
    ("fashion_mnist", "train"): (0.2860,),
    ("cifar10", "train"): (0.4914, 0.4822, 0.4465),
    ("cifar100", "train"): (0.5071, 0.4865, 0.4409),
    ("svhn", "train"): (0.4377, 0.4438, 0.4728),
    ("tiny_imagenet", "test"): (0.4824, 0.4495, 0.3981),
}
FOUND = [
    (name, split)
    for name, entry in ge.data.SETS.items()
    for split in entry.counts
    if entry.forms and find(entry, split, data_root())
]


@pytest.mark.parametrize(("name", "split"), FOUND)
def test_a_set_is_what_was_published_or_says_so(name, split):
    found = ge.data.load(name, split)
    assert len(found) == ge.data.SETS[name].counts[split] or found.note
    assert found.images.std() > 20
    if found.labels is not None and found.classes is not None:
        assert set(found.labels) == set(range(len(found.classes)))
    if (name, split) in MEANS:
        assert found.channel_means == pytest.approx(MEANS[name, split], abs=0.003 if found.note else 0.001)


def test_some_sets_were_found():
    assert FOUND, f"GREEDY_ENSEMBLES_DATA is set, but no set is in {data_root()}"
