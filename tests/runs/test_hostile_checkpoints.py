"""Checkpoints from people whom one should not trust: all that they hold is checked before training goes on with it.

Names, shapes and types of tensors are as good as addresses to a fused kernel, which looks at none of them.
"""

import json
import shutil

import pytest
import torch
from tests.engines.groups import Group, build
from tests.runs.forgery import forge, train

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.storage import FolderError, flatten, unflatten

DEEP = 100_000


def state_of_a_checkpoint(run, **options):
    """Interrupt the next member, and return what its checkpoint holds."""

    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, size=3, callbacks=[stop], **options)
    return storage.read_tensors(run / "checkpoint.safetensors")


def unlisted(state):
    (items,) = json.loads(state).values()
    return dict(items)["members"]["list"]


def turned(tensors):
    return dict(zip(tensors, reversed(tensors.values()), strict=True))


def with_state(change):
    """Return a change of what the checkpoint says of its member, all of it but tensors, and of its tensors."""

    def changed(tensors, state):
        whole = unflatten(json.loads(state), tensors)
        change(whole["members"][0])
        tensors = {}
        return tensors, {"state": json.dumps(flatten(whole, tensors))}

    return changed


def put(value, *path):
    """Return a change of one place of a member's state: to a value, or to what a function makes of what is there."""

    def changed(state):
        *way, last = path
        for name in way:
            state = state[name]
        state[last] = value(state[last]) if callable(value) else value

    return with_state(changed)


def tensors_of(change, *path):
    """Return a change of all tensors at a place of a member's state."""
    return put(lambda there: {name: change(value) for name, value in there.items()}, *path)


def momenta(change):
    return tensors_of(lambda there: {"momentum_buffer": change(there["momentum_buffer"])}, "optimizer", "state")


def history(change):
    return put(lambda text: json.dumps(change(json.loads(text))), "history")


def longer(value):
    return torch.zeros(2 * value.numel())


def shorter(value):
    return value.flatten()[:1].clone()


CHECKPOINTS = {
    "momenta of fewer numbers": momenta(shorter),
    "momenta of more numbers": momenta(longer),
    "momenta of whole numbers": momenta(lambda value: value.long()),
    "momenta of bytes": momenta(lambda value: value.to(torch.uint8)),
    "momenta that are no tensors": momenta(lambda value: 3.0),
    "momenta under another name": tensors_of(lambda v: {"other": v["momentum_buffer"]}, "optimizer", "state"),
    "momenta of another parameter": put(lambda there: {**there, 99: there[0]}, "optimizer", "state"),
    "an optimizer of other parameters": put([1, 0, 2, 3], "optimizer", "param_groups", 0, "params"),
    "a momentum that is text": put("much", "optimizer", "param_groups", 0, "momentum"),
    "a rate that is a list": put([0.1], "optimizer", "param_groups", 0, "initial_lr"),
    "weights of more numbers": tensors_of(longer, "model"),
    "weights of whole numbers": tensors_of(lambda value: value.long(), "model"),
    "best weights of fewer numbers": tensors_of(shorter, "best", "weights"),
    "best weights of halves": tensors_of(lambda value: value.half(), "best", "weights"),
    "best weights of another model": put({"weight": torch.zeros(3)}, "best", "weights"),
    "best weights that are none": put(3, "best", "weights"),
    "weights that are no numbers": tensors_of(lambda value: value * torch.nan, "model"),
    "momenta that are no numbers": momenta(lambda value: value * torch.nan),
    "averages that no one asked for": put([torch.zeros(2)], "average"),
    "a best epoch to come": put(9, "best", "epoch"),
    "a best score that is text": put("good", "best", "score"),
    "an epoch that is no number": put("one", "epoch"),
    "an epoch without its history": put(5, "epoch"),
    "a history of text": history(lambda records: ["loss"] * len(records)),
    "a loss that is text": history(lambda records: [{**record, "loss": "low"} for record in records]),
    "no history": history(lambda records: []),
    "a member that no one asked for": put(4, "number"),
    "a generator that points elsewhere": put(10**9, "generators", "numpy", 2),
    "a generator with too many words": put(torch.zeros(10**4, dtype=torch.int64), "generators", "numpy", 1),
    "another member of the same number": lambda tensors, state: (
        tensors,
        {"state": json.dumps({"dict": [["members", {"list": 2 * unlisted(state)}]]})},
    ),
    "no state": lambda tensors, state: (tensors, {}),
    "state that is no JSON": lambda tensors, state: (tensors, {"state": "cos\nsystem"}),
    "state that is deep": lambda tensors, state: (tensors, {"state": "[" * DEEP + "]" * DEEP}),
    "state of another kind": lambda tensors, state: (tensors, {"state": "[1, 2]"}),
    "two kinds at once": lambda tensors, state: (tensors, {"state": '{"dict": [], "list": []}'}),
    "a tensor that is not there": lambda tensors, state: ({}, {"state": state}),
    "an empty state": lambda tensors, state: (tensors, {"state": '{"dict": [["number", 3]]}'}),
    "tensors in another order": lambda tensors, state: (turned(tensors), {"state": state}),
}


def forge_checkpoint(run, change, **options):
    tensors, metadata = state_of_a_checkpoint(run, **options)
    changed, state = change({name: value.clone() for name, value in tensors.items()}, metadata["state"])
    storage.write_tensors(run / "checkpoint.safetensors", changed, {**state, "run": metadata["run"]})


@pytest.mark.parametrize("change", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_checkpoints_of_other_kinds_are_refused(run, change):
    forge_checkpoint(run, change)
    with pytest.raises(FolderError, match="checkpoint"):
        train(run, size=3)


def test_averages_of_other_shapes_are_refused(tmp_path):
    options = {"recipe": ge.Recipe(epochs=2, batch_size=10, ema=0.9), "method": "deep"}
    forge_checkpoint(tmp_path / "run", put(lambda there: [longer(value) for value in there], "average"), **options)
    with pytest.raises(FolderError, match=r"checkpoint.*of average"):
        train(tmp_path / "run", size=3, **options)


def test_the_checkpoint_of_another_run_is_refused(run, tmp_path):
    state_of_a_checkpoint(run)
    shutil.copytree(run, tmp_path / "other")
    forge(tmp_path / "other" / "run.json", id="another")
    for member in (tmp_path / "other" / "members").glob("*/member.json"):
        forge(member, run="another")
    with pytest.raises(FolderError, match=r"checkpoint\.safetensors is damaged .*another run"):
        train(tmp_path / "other", size=3)
    assert len(train(run, size=3)) == 3


def test_snapshots_that_are_missing_are_missed():
    """Later ones would otherwise take their places."""
    data, recipe = (torch.randn(20, 2), torch.arange(20) % 2), ge.Recipe(epochs=2)
    asked = {"size": 2, "method": "snapshot", "schedule": "sequential", "recipe": recipe}
    first, again = (Group(build(lambda: ge.models.MLP(2), data, **asked)) for _ in range(2))
    first.train(PlainEngine(first.members, first.step))
    state = first.members[0].state()
    again.members[0].restore(state)
    with pytest.raises(FolderError, match="kept"):
        again.members[0].restore({**state, "kept": []})
