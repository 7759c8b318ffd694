import json

import pytest
import torch

from greedy_ensembles.training.tree import flatten, unflatten


def test_nested_state_survives_json():
    state = {
        "state": {0: {"momentum_buffer": torch.randn(2), "step": 3}, 1: {"list": [torch.ones(1), None, (1, 2.5)]}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "nesterov": False, "params": [0, 1], "name": "x"}],
    }
    tensors = {}
    skeleton = json.loads(json.dumps(flatten(state, tensors)))
    back = unflatten(skeleton, tensors)
    assert torch.equal(back["state"][0]["momentum_buffer"], state["state"][0]["momentum_buffer"])
    assert back["state"][0]["step"] == 3
    assert back["state"][1]["list"][1:] == [None, (1, 2.5)]
    assert back["param_groups"] == state["param_groups"]
    assert isinstance(back["param_groups"][0]["betas"], tuple)


def test_what_json_cannot_hold_is_named():
    with pytest.raises(TypeError, match="the state to save holds a set"):
        flatten({"x": {1, 2}}, {})
