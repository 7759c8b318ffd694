"""The benchmark of the engine on a GPU, its logic on a CPU; and pages that benchmarks wrote, against their data."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from benchmarks import pytorchs, repeats

from greedy_ensembles import models
from greedy_ensembles.training.eager import EagerEngine

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def engine(monkeypatch):
    """The script in this process, smaller, with what needs a GPU replaced."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("engine")
    changes = {
        "DEVICE": "cpu",
        "BATCH": 8,
        "SIZE": 3,
        "STEPS": 1,
        "named": lambda model, classes, channels: models.named("PreResNet8", classes, channels),
        "CapturedEngine": EagerEngine,
        "in_turn": lambda *runs, **options: [(run(), 0.5 + number)[1] for number, run in enumerate(runs)],
        "profiled": lambda run, steps: (run(), {"others": {"milliseconds": 1.0, "kernels": 2.0}})[1],
        "rates": lambda: (1e15, 4e12),
    }
    for name, value in changes.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no GPU")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    return script


def test_the_speed_of_a_network_is_measured_from_the_loop_to_the_page(engine, tmp_path, capsys):
    (tmp_path / "speed-reading.md").write_text("Written by hand.")
    engine.on_gpu(["VGG16BN"], tmp_path)
    found = json.loads((tmp_path / "speed.json").read_text())["parts"]["VGG16BN"]
    members = {name: entry.get("members_at_once") for name, entry in found["times"].items()}
    assert members == {
        "published loop, deep": None,
        "published loop, greedy": None,
        **{f"sequential, {kind}": 1 for kind in ("deep", "p* batch 128", "p* batch 8")},
        **{f"concurrent, {kind}": 3 for kind in ("deep", "p* batch 128", "p* batch 8")},
    }
    assert found["times"]["concurrent, deep"]["milliseconds"] == pytest.approx(1e3 * 0.5 / 3)  # a member's share
    assert found["ratios"]["published loop over concurrent, p* batch 128"] == pytest.approx(3)
    page = (tmp_path / "speed.md").read_text()
    assert "| concurrent, deep | 166.67 |" in page
    assert page.endswith("Written by hand.")
    assert "met" in capsys.readouterr().out


def test_predicting_is_measured_against_a_loop_over_members(engine):
    found = engine.inference("PreResNet8", "cpu", 10, 4)
    assert found["ratio"] == pytest.approx(0.5 / 1.5)
    assert found["largest difference"] < 1e-5


@pytest.mark.parametrize("name", ["PreResNet20", "PreResNet164", "VGG16BN", "WideResNet28x10"])
def test_the_published_loop_has_the_same_network_in_pytorchs_layers_alone(name):
    torch.manual_seed(0)
    ours = models.named(name, 10, 3)().eval()
    theirs = pytorchs.network(ours)
    with torch.no_grad():
        x = torch.rand(2, 3, 32, 32)
        torch.testing.assert_close(theirs(x), ours(x), rtol=1e-4, atol=1e-5)
    kinds = {type(module).__module__ for module in list(theirs.modules())[1:]}  # the first is the network itself
    assert not any(kind.startswith("greedy_ensembles") for kind in kinds)


RESULTS = BENCHMARKS.parent / "results"


@pytest.mark.parametrize(("page", "script"), [("speed", "speed_page"), ("cpu", "cpu")])
def test_pages_of_the_engine_are_made_of_what_was_measured(monkeypatch, page, script):
    monkeypatch.syspath_prepend(BENCHMARKS)
    content = json.loads((RESULTS / f"engine/{page}.json").read_text())
    reading = (RESULTS / f"engine/{page}-reading.md").read_text()
    assert (RESULTS / f"engine/{page}.md").read_text() == importlib.import_module(script).page(content, reading)


@pytest.mark.parametrize("model", ["VGG16BN", "PreResNet164", "WideResNet28x10"])
def test_ratios_of_speed_are_those_of_its_times(monkeypatch, model):
    monkeypatch.syspath_prepend(BENCHMARKS)
    part = json.loads((RESULTS / "engine/speed.json").read_text())["parts"][model]
    assert part["ratios"] == pytest.approx(importlib.import_module("engine").ratios(part["times"]), rel=1e-12)


def test_the_page_of_repeated_runs_is_made_of_their_records():
    reading = (RESULTS / "repeats/reading.md").read_text()
    assert (RESULTS / "repeats/repeats.md").read_text() == repeats.page(repeats.tries(RESULTS), reading)
