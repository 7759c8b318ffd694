"""Training gives the numbers that it gave in version 0.1: tests/fixtures/training-0.1.json."""

import json
import runpy
from itertools import groupby
from pathlib import Path

import pytest
import torch

WRITER = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "write_training.py"))
EXPECTED = json.loads(WRITER["FILE"].read_text())


def test_every_case_is_there():
    assert {name: result["case"] for name, result in EXPECTED.items()} == WRITER["CASES"]


def test_no_two_best_epochs_tie():
    for result in EXPECTED.values():
        for _, entries in groupby(result["history"], lambda entry: entry["member"]):
            accuracies = [entry["validation_accuracy"] for entry in entries]
            assert set(accuracies) == {None} or accuracies.count(max(accuracies)) == 1


def present(entry):
    """Return the numbers of an epoch; a diversity term or a validation accuracy may not be among them."""
    return {name: value for name, value in entry.items() if value is not None}


@pytest.mark.parametrize("name", WRITER["CASES"])
def test_training_gives_the_same_numbers(name):
    torch.set_num_threads(1)
    expected, found = EXPECTED[name], WRITER["train"](WRITER["CASES"][name])
    for ours, theirs in zip(found["history"], expected["history"], strict=True):
        assert present(ours) == pytest.approx(present(theirs), rel=1e-5, abs=1e-5)
    probabilities = torch.tensor(found["probabilities"])
    torch.testing.assert_close(probabilities, torch.tensor(expected["probabilities"]), rtol=0, atol=1e-5)
