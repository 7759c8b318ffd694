"""`ge.sweep` without a cluster: grids, names, failures, processes, and what is refused."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.method import Hyper
from greedy_ensembles.sweeps.executor import Processes

# Three epochs leave some members behind, which is no matter here.
pytestmark = pytest.mark.filterwarnings("ignore::greedy_ensembles.runs.notes.WeakMemberWarning")


def test_processes_end_with_the_weights_of_one_after_another(blobs, quick, tmp_path):
    """Models and callbacks may be lambdas; a run that fails ends no other, and the same call goes on."""
    options = {**quick, "size": 2, "validation": 0.2}
    runs = [{"seed": 2, "strength": 3.0}, {"seed": 0, "weighting": "nonsense"}]
    log = tmp_path / "epochs"

    def note(epoch):
        with log.open("a") as file:
            print(epoch.member, epoch.epoch, file=file)

    def swept(on, folder):
        return ge.sweep(
            lambda: torch.nn.Linear(2, 2), blobs, runs, storage=tmp_path / folder, on=on, callbacks=[note], **options
        )

    apart, here = swept("processes", "apart"), swept(None, "here")
    assert list(apart.ensembles) == list(here.ensembles) == ["seed-2-strength-3.0"]
    ours, theirs = (found.ensembles["seed-2-strength-3.0"] for found in (apart, here))
    assert torch.equal(ours.predict_proba(blobs[0]), theirs.predict_proba(blobs[0]))
    assert list(apart.arguments.values()) == runs
    for found in (apart, here):
        assert str(found).startswith("1 of 2 runs are finished\nseed-0-weighting-nonsense failed: TypeError: weighting")
    assert len(log.read_text().splitlines()) == 2 * 2 * 3  # two sweeps of a run of two members and three epochs
    again = swept(None, "apart")
    assert len(log.read_text().splitlines()) == 12
    assert list(again.ensembles) == list(apart.ensembles)


def test_the_names_of_runs_are_folders(blobs, quick, tmp_path):
    class Own(ge.Coupling):
        label = "own kind / 2"

        def terms(self, live, bank):
            return live.sum((1, 2)) * 0

    short = ge.Recipe(epochs=1)
    hypers = [Hyper(lr=(0.1, 1.0)), Hyper(lr=(0.5, 1.0))]
    grid = {"recipe": [short], "method": [Own(), "deep", *hypers], "device": ["cpu"]}
    del quick["recipe"], quick["device"]
    done = ge.sweep(lambda: ge.models.MLP(2, (4,)), blobs, grid, size=1, storage=tmp_path, on=None, **quick)
    first, *of_one_class, last = sorted(path.name for path in tmp_path.iterdir())
    recipe = first.removesuffix("method-deep")  # which has its hash
    assert last == f"{recipe}method-own_kind_2"
    assert all(name.startswith(f"{recipe}method-hyper_ensemble-") for name in of_one_class)
    assert len(of_one_class) == 2
    assert [own["method"] for own in done.arguments.values()] == grid["method"]


@pytest.mark.parametrize(
    ("runs", "options", "error", "message"),
    [
        ({"seed": 3}, {}, TypeError, r"runs must map seed to a list of values, such as \[3\]"),
        ("seed", {}, TypeError, "runs must be a grid"),
        ({"seed": []}, {}, ValueError, "runs must hold a run"),
        ([{"seed": 1}, {"seed": 1}], {}, ValueError, "seed-1 is there twice"),
        ({"seed": [0, 1]}, {}, ValueError, "seeds must be at least 2 apart, .* got 0 and 1"),
        ({"lamda": [1]}, {}, TypeError, "no argument lamda, which runs name; it takes .*strength"),
        ({"lr": [0.1]}, {}, TypeError, r"ge\.Recipe\(lr=\.\.\.\)"),
        ({"run_dir": ["here"]}, {}, TypeError, "runs have no argument run_dir"),
        ({"seed": [0]}, {"on": "rey"}, ValueError, "on must be one of .*; did you mean 'ray'"),
        ({"seed": [0]}, {"on": 4}, TypeError, "on must be text"),
        ({"seed": [0]}, {"on": "ray://127.0.0.1:9"}, ValueError, "on='ray://127.0.0.1:9' does not answer"),
        ({"seed": [0]}, {"on": "127.0.0.1:9"}, ValueError, "on='127.0.0.1:9' does not answer"),
        ({"seed": [0]}, {"cpus": 10_000}, ValueError, "cpus must be at most"),
        ({"seed": [0]}, {"gpus": 10_000}, ValueError, "gpus must be at most"),
        ({"seed": [0]}, {"gpus": 1.5}, ValueError, "gpus must be a share of one GPU or a whole number"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(blobs, make_model, tmp_path, runs, options, error, message):
    with pytest.raises(error, match=message):
        ge.sweep(make_model, blobs, runs, size=2, storage=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_a_variable_with_an_address_that_does_not_answer_is_named(blobs, make_model, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ValueError, match=r"RAY_ADDRESS=127\.0\.0\.1:9,.* on='ray' .*does not answer"):
        ge.sweep(make_model, blobs, {"seed": [0]}, size=2, storage=tmp_path / "runs", on="ray")
    assert not (tmp_path / "runs").exists()


def test_an_address_that_is_none_of_rays_is_named(blobs, make_model, tmp_path):
    """Such as that of its dashboard, where Ray itself would wait for minutes."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request).start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ValueError, match=f"on='{address}' does not answer"):
            ge.sweep(make_model, blobs, {"seed": [0]}, size=2, storage=tmp_path / "runs", on=address)
    assert not (tmp_path / "runs").exists()


def test_without_ray_its_extra_is_named(blobs, make_model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"on='ray' needs ray: .*pip install 'greedy-ensembles\[ray\]'"):
        ge.sweep(make_model, blobs, {"seed": [0]}, size=2, storage=tmp_path / "runs", on="ray")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("gpus", "places"), [(1, ("4", "6", "7")), (0.5, ("4", "6", "7", "4", "6", "7")), (2, ("4,6",)), (0, ())]
)
def test_gpus_are_shared_out(monkeypatch, gpus, places):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert Processes.needing(1, gpus).places == places
