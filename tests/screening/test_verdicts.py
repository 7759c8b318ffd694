import csv
import math

import numpy as np
import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.screening import judge, to_csv


class Fixed(nn.Module):
    """A member that says the same of everything."""

    def __init__(self, *probs):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probs).log())

    def forward(self, x):
        assert x.ndim == 2
        return self.logits.expand(len(x), -1)


def test_figures_are_those_of_the_definitions():
    ensemble = ge.Ensemble.from_members([Fixed(0.9, 0.1), Fixed(0.3, 0.7)])
    verdicts = judge(ensemble, np.zeros((5, 2), np.float32), batch_size=2)

    def entropy(*probs):
        return -sum(p * math.log(p) for p in probs)

    aleatoric = (entropy(0.9, 0.1) + entropy(0.3, 0.7)) / 2
    assert verdicts.classes.tolist() == [0] * 5
    assert verdicts.probability == pytest.approx([0.6] * 5, abs=1e-6)
    assert verdicts.total == pytest.approx([entropy(0.6, 0.4)] * 5, abs=1e-6)
    assert verdicts.aleatoric == pytest.approx([aleatoric] * 5, abs=1e-6)
    assert verdicts.epistemic == pytest.approx([entropy(0.6, 0.4) - aleatoric] * 5, abs=1e-6)
    assert verdicts.epistemic.dtype == np.float64


def test_more_inputs_than_are_predicted_at_once_keep_their_order():
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3), nn.Linear(2, 3)])
    x = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32)
    assert judge(ensemble, x).epistemic == pytest.approx(ensemble.uncertainty(x).epistemic.numpy(), abs=1e-6)


def test_the_table_has_names_and_flags():
    ensemble = ge.Ensemble.from_members([Fixed(0.9, 0.1), Fixed(0.3, 0.7)])
    verdicts = judge(ensemble, np.zeros((1, 2), np.float32))
    exact = float(verdicts.epistemic[0])

    def row(**options):
        (found,) = csv.DictReader(to_csv(('a,"b".png',), verdicts, **options).splitlines())
        return found

    assert row(classes=("cat", "dog"), threshold=exact)["flagged"] == "yes"  # at the threshold is out of distribution
    assert row(threshold=math.nextafter(exact, 1))["flagged"] == "no"
    plain = row(classes=("cat", "dog"))
    assert plain["input"] == 'a,"b".png'
    assert plain["class"] == "cat"
    assert float(plain["mutual_information"]) == pytest.approx(exact, rel=1e-5)
    assert "flagged" not in plain
    assert row(classes=("cat", "dog", "bird"))["class"] == "0"  # names of other classes are worse than none


def test_inputs_of_another_shape_are_refused_in_one_line():
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3)])
    with pytest.raises(ValueError, match=r"cannot take inputs of shape \(4,\) and type float32") as caught:
        judge(ensemble, np.zeros((1, 4), np.float32))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        judge(ensemble, np.zeros((1, 2), np.float32), batch_size=0)


def test_a_member_that_breaks_down_is_an_error():
    broken = nn.Linear(2, 3)
    nn.init.constant_(broken.weight, math.nan)
    with pytest.raises(ArithmeticError, match="NaN"):
        judge(ge.Ensemble.from_members([broken]), np.zeros((1, 2), np.float32))
