"""On the real files, where GREEDY_ENSEMBLES_DATA names a folder of them."""

import os

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import PRESETS, evaluate
from greedy_ensembles.data import data_root
from greedy_ensembles.data.registry import find
from greedy_ensembles.paper.published import image_count

pytestmark = pytest.mark.skipif(
    not os.environ.get("GREEDY_ENSEMBLES_DATA"), reason="GREEDY_ENSEMBLES_DATA names no folder of real data"
)


@pytest.mark.parametrize("dataset", PRESETS)
def test_every_set_of_a_preset_is_judged_with_its_count_or_a_note(dataset):
    if find(ge.data.SETS[dataset], "test", data_root()) is None:
        pytest.skip(f"{dataset} is not there")
    test = ge.data.load(dataset, "test")
    torch.manual_seed(0)
    pixels = test.images[0].size
    members = [nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(pixels // 16, 10)) for _ in range(2)]
    found = evaluate(ge.Ensemble(members), test, dataset, batch_size=8192)
    assert {result.name for result in found.ood} | set(found.missing) == set(PRESETS[dataset])
    for result in found.ood:
        # Omniglot's archive has one image less than the paper counts.
        assert result.images in (image_count(result.name), 13_180) or result.note
        assert 0 <= result.auc <= 1
