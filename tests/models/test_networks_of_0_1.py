"""The networks are what they were in version 0.1, by name, shape and number: tests/fixtures/networks-0.1."""

import json
import runpy
from pathlib import Path

import pytest
import torch

WRITER = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "write_networks.py"))


def read(name):
    return json.loads((WRITER["FOLDER"] / f"{name}.json").read_text())


@pytest.mark.parametrize("name", WRITER["NETWORKS"])
def test_a_network_computes_what_it_did(name):
    make_model, shape = WRITER["NETWORKS"][name]
    expected, model = read(name), make_model()
    assert WRITER["names_and_shapes"](model) == {kind: expected[kind] for kind in ("parameters", "buffers")}
    assert list(shape) == expected["input"]
    state = WRITER["weights"](expected["parameters"] + expected["buffers"])
    found = WRITER["results"](model, shape, state)
    for key in ("eval_logits", "train_logits"):
        assert_close(found[key], expected[key], key)
    for key in ("gradients", "statistics"):
        assert found[key].keys() == expected[key].keys()
        for entry, value in expected[key].items():
            assert_close(found[key][entry], value, f"{key} of {entry}")


@pytest.mark.parametrize("name", WRITER["LISTED"])
def test_a_deep_network_has_the_names_and_shapes_that_it_had(name):
    assert WRITER["fingerprint"](WRITER["LISTED"][name]()) == read(name)


def assert_close(found, expected, what):
    found, expected = (torch.tensor(values, dtype=torch.float64) for values in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10, msg=lambda text: f"{what}: {text}")
