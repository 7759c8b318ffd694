"""The benchmark of the engine on a GPU, its logic on a CPU; and pages that benchmarks wrote, against their data."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from benchmarks import repeats
from greedy_ensembles.training.eager import EagerEngine

from greedy_ensembles import models
from greedy_ensembles.engines.accelerate import BatchNormReLU
from greedy_ensembles.method import batchnorm, split_batchnorm
from greedy_ensembles.training import captured, working_copies

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


@pytest.fixture
def ablation(engine, monkeypatch):
    """What each piece is worth, smaller."""
    script = importlib.import_module("ablation")
    changes = {"STEPS": 1, "STEPS_TOGETHER": 1, "STEPS_EAGER": 1, "IMAGES": 6, "IMAGES_AT_ONCE": 4}
    changes |= {"named": engine.named, "CapturedEngine": EagerEngine}
    for name, value in changes.items():
        monkeypatch.setattr(script, name, value)
    script.posed.cache_clear()
    yield script
    script.posed.cache_clear()


def test_every_piece_is_left_out_once_and_what_is_there_is_not_measured_again(ablation, tmp_path, capsys, monkeypatch):
    parts = ["VGG16BN", "predicting with VGG16BN"]
    ablation.run(parts, tmp_path, 0.0)  # no time at all
    assert not (tmp_path / "ablation.json").exists()
    train, tried = ablation.training, []

    def training(variant, *rest):
        tried.append(variant.name)
        if tried.count("less lanes") == 1 and variant.name == "less lanes":
            raise RuntimeError("no lanes\nin here")
        return train(variant, *rest)

    few = ("everything", "plain, compiled", "less norm kernels", "less lanes")
    monkeypatch.setattr(ablation, "VARIANTS", [variant for variant in ablation.VARIANTS if variant.name in few])
    monkeypatch.setattr(ablation, "training", training)
    ablation.run(parts, tmp_path, 600.0)
    content = json.loads((tmp_path / "ablation.json").read_text())
    rows = content["measured"]["VGG16BN"]
    assert list(rows) == list(few)
    assert {entry["members"] for entry in rows["everything"].values()} == {1, 3}
    assert rows["less lanes"]["concurrent, p* 128"]["error"] == "RuntimeError: no lanes"
    assert "milliseconds" in rows["less lanes"]["concurrent, p* 32"]
    assert len(content["measured"]["predicting with VGG16BN"]) == 4
    page = (tmp_path / "ablation.md").read_text()
    assert "| everything | 500.00 (1.00) |" in page
    assert "failed" in page
    capsys.readouterr()
    ablation.run(parts, tmp_path, 600.0)
    assert len(capsys.readouterr().out.splitlines()) == 1  # what had failed
    assert "failed" not in (tmp_path / "ablation.md").read_text()


def test_what_decides_most_is_measured_first(ablation):
    planned = [(part, row, column) for _, part, row, column, _ in ablation.plan(list(ablation.PARTS))]
    assert len(planned) == len(set(planned))
    first = ["everything", "plain", "plain, compiled", "less norm kernels"]
    of_vgg = [(row, column) for part, row, column in planned if part == "VGG16BN"]
    assert list(dict.fromkeys(row for row, _ in of_vgg))[:4] == first
    assert {row for row, _ in of_vgg} == {v.name for v in ablation.VARIANTS if "VGG16BN" in v.models}


def test_a_piece_is_worth_keeping_by_what_a_step_takes_without_it(ablation):
    def row(milliseconds):
        return {"sequential, p* 128": {"milliseconds": milliseconds, "ready_seconds": 1.0, "members": 1, "run": 0}}

    def network(without_norms, plain, compiled):
        rows = {"everything": 2.0, "less norm kernels": without_norms, "plain": plain, "plain, compiled": compiled}
        return {name: row(milliseconds) for name, milliseconds in rows.items()}

    run = {"command": "c", "date": "d", "machine": "m", "torch": "t", "commit": None}
    measured = {
        "VGG16BN": network(2.2, 3.0, 2.0),
        "PreResNet164": network(2.4, 4.0, 2.5),
        "WideResNet28x10": network(2.0, 2.1, 2.1),
    }
    page = importlib.import_module("ablation_page").page({"batch": 8, "size": 3, "runs": [run], "measured": measured})
    assert "| norm kernels | 1.10 | 1.20 | 1.00 | keep |" in page
    assert "| compiling (plain over plain, compiled) | 1.50 | 1.60 | 1.00 | keep |" in page
    assert "| all our layers (the fastest plain over everything) | 1.00 | 1.25 | 1.05 | delete (1 of 3) |" in page
    assert "| less norm kernels | 2.40 (1.20) |" in page


def test_a_measurement_that_takes_too_long_is_given_up(ablation, monkeypatch):
    monkeypatch.setattr(ablation, "LIMIT", 0.05)

    def endless():
        while True:
            try:
                sum(range(1000))
            except Exception:  # as the engine does where compiling fails
                continue

    assert ablation.attempt(endless) == {"error": "OutOfTime: not done after 0 s"}


def test_pieces_are_left_out_inside_a_block_alone(ablation):
    pieces = importlib.import_module("pieces")
    names = [(target, name, getattr(target, name)) for way in pieces.VARIANTS for target, name, _ in way.changes]
    assert {(target, name) for target, name, _ in names} >= {
        (working_copies, "can_update"),
        (captured, "accelerate"),
        (captured, "WorkingCopies"),
        (captured, "Lanes"),
        (batchnorm, "_split_kind"),
    }
    net = models.PreResNet(8)
    for changes, kind in (((), BatchNormReLU), (pieces.NORMS, torch.nn.BatchNorm2d)):
        with pieces.replaced(changes), captured.accelerate(net):
            assert type(net.norm) is kind
    for way in (*pieces.VARIANTS, *pieces.PREDICTIONS):
        with pieces.replaced(way.changes):
            assert all(getattr(target, name) is value for target, name, value in way.changes)
    assert all(getattr(target, name) is value for target, name, value in names)


def test_normalising_once_is_what_split_batchnorm_does(ablation):
    pieces = importlib.import_module("pieces")
    torch.manual_seed(0)
    x = torch.rand(6, 3, 4, 4)
    found = []
    for changes in ((), pieces.ONCE):
        layer = torch.nn.BatchNorm2d(3)
        torch.nn.init.uniform_(layer.weight, 0.5, 1.5, generator=torch.Generator().manual_seed(1))
        given = x.clone().requires_grad_()
        with pieces.replaced(changes), split_batchnorm(layer, 4, "batch"):
            y = layer(given)
        y.square().mul(torch.arange(y.numel()).view_as(y)).sum().backward()
        found.append([y, given.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_members_without_working_copies_or_lanes_take_the_same_steps(ablation):
    pieces = importlib.import_module("pieces")
    with pieces.replaced(pieces.COPIES):
        assert captured.WorkingCopies("model", "optimizer") is None
        assert captured.GroupStep is not pieces.GroupStep
    taken = []
    step = type("Step", (), {"run": lambda self: taken.append(self)})()
    with pieces.replaced(pieces.LANES):
        captured.Lanes(3, torch.device("cpu"), True).run(step)
    assert taken == [step]


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
