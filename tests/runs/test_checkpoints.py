"""What a run folder keeps of a member under way, and when."""

import shutil
import time

import pytest
import torch
from tests.runs.test_folder import Stop, same, stop_at

import greedy_ensembles as ge
from greedy_ensembles.runs.folder import RunFolder


def test_an_optimizer_with_nested_state_resumes_exactly(fit):
    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.01, amsgrad=True)

    recipe = ge.Recipe(epochs=3, batch_size=16, optimizer=adam)
    with pytest.raises(Stop):
        fit(recipe=recipe, callbacks=[stop_at(2, 2)])
    resumed = fit(recipe=recipe)
    whole = fit(recipe=recipe, run_dir=None)
    assert all(same(a, b) for a, b in zip(resumed, whole, strict=True))


def test_states_that_take_long_to_write_are_saved_now_and_then(fit, make_model, tmp_path, monkeypatch):
    """Ten times as long as it took, by which a kill costs some epochs; the last state of a member always."""
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(1, 1)])
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    folder = RunFolder(tmp_path / "run", make_model, torch.device("cpu"))

    def saved(epoch, seconds, last=False):
        def state():
            now[0] += seconds
            return {"members": [{"number": 1, "epoch": epoch}]}

        folder.save_checkpoint(state, last)
        now[0] += 3.0  # of an epoch
        return folder.checkpoint()["members"][0]["epoch"]

    assert [saved(epoch, seconds=0.5) for epoch in range(1, 4)] == [1, 2, 3]  # every one
    assert [saved(epoch, seconds=2.0) for epoch in range(1, 10)] == [1] * 7 + [8, 8]
    assert saved(10, seconds=2.0, last=True) == 10


def test_of_earlier_members_a_folder_has_those_that_were_written(fit, make_model, tmp_path):
    """A kill may come between them; processes that share members are told what is there."""
    earlier = ge.Ensemble.from_members([make_model(), make_model()])
    with pytest.raises(Stop):
        fit(earlier=earlier, callbacks=[stop_at(3, 1)])
    shutil.rmtree(tmp_path / "run" / "members" / "02")
    folder = RunFolder(tmp_path / "run", make_model, torch.device("cpu"), earlier)
    assert len(folder.members()) == len(folder.facts()) == 1
