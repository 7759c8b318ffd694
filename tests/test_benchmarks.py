"""The benchmark of the engine on a GPU, its logic on a CPU; and pages that benchmarks wrote, against their data."""

import importlib
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cpu
import forest
import large_data
import numpy as np
import pytest
import repeats
import scale
import torch
from torch import nn

from greedy_ensembles import models
from greedy_ensembles.engines import captured
from greedy_ensembles.engines.accelerate import BatchNormReLU
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.paper.study import CHOOSING, NOISE

RESULTS = Path(__file__).parents[1] / "results"
#: By page, the module that writes it, and the function, where that has a name of its own.
PAGES = {
    "engine/speed": "speed_page",
    "engine/ablation": "ablation",
    "engine/cpu": "cpu",
    "default-p-star-small/choice": "p_star",
    "p-star-search/choice": "p_star",
    "engine/schedules": "schedules",
    "engine/since": "since",
    "gaussian/gaussian": "gaussian_images",
    "large-data/large-data": "large_data",
    "scale/one-gpu": "scale.page_of_one_gpu",
    "scale/scale": "scale",
    "statistics/statistics": "batch_statistics",
    "two-moons/snapshots": "snapshots",
}


def network():
    body = nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


@pytest.fixture
def engine(monkeypatch):
    """The script in this process, smaller, with what needs a GPU replaced."""
    script = importlib.import_module("engine")
    changes = {
        "DEVICE": "cpu",
        "BATCH": 8,
        "SIZE": 3,
        "STEPS": 1,
        "named": lambda model, classes, channels: network,
        "CapturedEngine": lambda members, step, plan: PlainEngine(members, step),
        "in_turn": lambda *runs, **options: [(run(), 0.5 + number)[1] for number, run in enumerate(runs)],
        "profiled": lambda run, steps: (run(), {"others": {"milliseconds": 1.0, "kernels": 2.0}})[1],
        "rates": lambda: (1e15, 4e12),
    }
    for name, value in changes.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no GPU")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    return script


def test_the_speed_of_a_network_is_measured_from_the_loop_to_the_page(engine, tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "speed-reading.md").write_text("Written by hand.")
    engine.on_gpu(["VGG16BN"], tmp_path)
    found = json.loads((tmp_path / "records" / "speed.json").read_text())["parts"]["VGG16BN"]
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
    assert page.index("Written by hand.") < page.index("| concurrent, deep |")
    assert "| concurrent over sequential, deep | 0.33 (target <= 0.7: met) |" in page


def test_predicting_is_measured_against_a_loop_over_members(engine):
    found = engine.inference("PreResNet8", "cpu", 10, 4)
    assert found["ratio"] == pytest.approx(0.5 / 1.5)
    assert found["largest difference"] < 1e-5


@pytest.fixture
def ablation(engine, monkeypatch):
    """What each piece is worth, smaller."""
    script = importlib.import_module("ablation")
    changes = {"STEPS": 1, "STEPS_TOGETHER": 1, "STEPS_PLAIN": 1, "IMAGES": 6, "IMAGES_AT_ONCE": 4}
    few = [
        replace(way, cells=[(schedule, 4) for schedule, samples in way.cells if samples == 128])
        for way in script.TRAINING
    ]
    changes |= {
        "named": engine.named,
        "CapturedEngine": engine.CapturedEngine,
        "in_turn": engine.in_turn,
        "CELLS": (("sequential", 4), ("concurrent", 4)),
        "TRAINING": few,
    }
    for name, value in changes.items():
        monkeypatch.setattr(script, name, value)
    script.algorithm.cache_clear()
    yield script
    script.algorithm.cache_clear()


def test_every_piece_is_left_out_once_and_what_fails_is_told(ablation, tmp_path):
    def fail(*_):
        raise RuntimeError("no streams\nin here")

    (position,) = (k for k, variant in enumerate(ablation.TRAINING) if variant.name == "less streams")
    odd = replace(ablation.TRAINING[position], changes=((ablation.engine, "engine_of", fail),))
    ablation.TRAINING[position] = odd
    for part in ("VGG16BN", "predicting with VGG16BN"):
        ablation.run([part], tmp_path)
    found = json.loads((tmp_path / "records/ablation.json").read_text())["parts"]
    rows = found["VGG16BN"]["rows"]
    assert list(rows) == [variant.name for variant in ablation.TRAINING]
    assert {entry["members"] for entry in rows["everything"].values()} == {1, 3}
    assert rows["less streams"]["concurrent, p* 4"]["error"] == "RuntimeError: no streams"
    assert len(found["predicting with VGG16BN"]["rows"]) == 4
    page = (tmp_path / "ablation.md").read_text()
    assert "| everything | 500.00 (1.00) |" in page
    assert "failed" in page


def test_a_piece_is_worth_keeping_by_what_a_step_takes_without_it(ablation):
    def network(**without):
        rows = {"everything": 2.0, **{f"less {name.replace('_', ' ')}": value for name, value in without.items()}}
        entry = {"ready_seconds": 1.0, "members": 1}
        cells = {name: {"sequential, p* 4": {"milliseconds": value, **entry}} for name, value in rows.items()}
        return {"date": "d", "machine": "m", "torch": "t", "commit": None, "rows": cells}

    parts = {
        "VGG16BN": network(BatchNorm_kernels=2.2, captured_steps=3.0, streams=2.0),
        "PreResNet164": network(BatchNorm_kernels=2.4, captured_steps=2.1, streams=2.5),
        "WideResNet28x10": network(BatchNorm_kernels=2.0, captured_steps=2.1),
    }
    page = ablation.page({"batch": 8, "size": 3, "parts": parts}).text()
    assert "| BatchNorm kernels | 1.10 | 1.20 | 1.00 | keep |" in page
    assert "| captured steps | 1.50 | 1.05 | 1.05 | delete (1 of 3) |" in page
    assert "| streams | 1.00 | 1.25 |  | open |" in page
    assert "| less BatchNorm kernels | 2.40 (1.20) |" in page


def test_pieces_are_left_out_inside_a_block_alone(ablation):
    net = models.PreResNet(8)
    for variant in (*ablation.TRAINING, *ablation.PREDICTIONS):
        with ablation.replaced(variant.changes), captured.accelerate(net):
            assert type(net.norm) is (nn.BatchNorm2d if "BatchNorm" in variant.name else BatchNormReLU)
    with captured.accelerate(net):
        assert type(net.norm) is BatchNormReLU


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_made_of_what_was_measured(page):
    file = RESULTS / f"{page}.md"
    content = json.loads((file.parent / "records" / f"{file.stem}.json").read_text())
    readings = [file.parent / "records" / name for name in (f"{file.stem}-reading.md", "reading.md")]
    reading = next(own.read_text() for own in readings if own.exists())
    module, _, function = PAGES[page].partition(".")
    made = getattr(importlib.import_module(module), function or "page")(content)
    assert file.read_text() == made.text(reading)


def test_what_is_compared_with_an_older_commit_is_what_its_page_has():
    content = json.loads((RESULTS / "engine/records/since.json").read_text())
    assert content["found"].keys() == importlib.import_module("since").work().keys()


@pytest.mark.parametrize("model", ["VGG16BN", "PreResNet164", "WideResNet28x10"])
def test_ratios_of_speed_are_those_of_its_times(model):
    part = json.loads((RESULTS / "engine/records/speed.json").read_text())["parts"][model]
    of = {name: entry["milliseconds"] for name, entry in part["times"].items()}
    kinds = ("deep", "p* batch 128", "p* batch 8")
    # Of 11 members one after another, the first has no samples of p*.
    sequential = {kind: (of["sequential, deep"] + 10 * of[f"sequential, {kind}"]) / 11 for kind in kinds}
    expected = {
        "published loop over concurrent, p* batch 128": of["published loop, greedy"] / of["concurrent, p* batch 128"],
        "p* batch 8 over Deep Ensembles, concurrent": of["concurrent, p* batch 8"] / of["concurrent, deep"],
        "p* batch 8 over Deep Ensembles, sequential": sequential["p* batch 8"] / of["sequential, deep"],
        **{f"concurrent over sequential, {kind}": of[f"concurrent, {kind}"] / sequential[kind] for kind in kinds},
    }
    assert part["ratios"] == pytest.approx(expected, rel=1e-12)
    assert importlib.import_module("engine").ratios(part["times"]) == pytest.approx(expected, rel=1e-12)


#: In a process of its own, without children of other tests that end meanwhile.
WATCH = """
import sys, numpy, torch, large_data
peaks = []
with large_data.watched(peaks):
    kept, mapped = torch.ones(1 << 24), numpy.memmap(sys.argv[1], numpy.uint8, "r")  # 64 MiB of its own
    mapped.sum()
print(*peaks)
"""


def test_memory_and_throughput_of_large_data_are_measured(tmp_path):
    (tmp_path / "x").write_bytes(bytes(1 << 25))  # 32 MiB
    command = [sys.executable, "-c", WATCH, str(tmp_path / "x")]
    told = subprocess.run(command, cwd=Path(large_data.__file__).parent, check=True, capture_output=True, text=True)
    own, mapped = map(float, told.stdout.split())
    assert 64 <= own < 96
    assert 30 < mapped < 64
    found = large_data.run(gib=1e-4, files=300, side=8, workers=0, repeats=1)
    assert [name.split(", ")[-1] for name in found] == ["DataLoader", "a pair", "DataLoader"]
    for one in found.values():
        assert one["ratio"] == pytest.approx(one["ours_per_s"] / one["plain_per_s"])
        assert 0 <= one["own_mib"] < 1024


def test_heads_are_measured_against_one_and_against_the_usual_way():
    found = cpu.heads(images=200, epochs=1, repeats=1)
    assert len(found) == 2
    assert min(found.values()) > 0


def test_exchanges_and_steps_are_measured_over_processes():
    found = scale.measure((2,), rounds=1, calls=4, epochs=2)["2"]
    assert found.keys() == {"32 x 10", "128 x 10", "128 x 100", "128 x 1000", "step"}
    assert {clock["count"] for name, clocks in found.items() for clock in clocks.values() if name != "step"} == {4}
    assert found["step"]["wall"]["count"] == 2 * scale.STEPS - 1
    assert found["step"]["processor"]["decile"] > 0


def test_a_step_is_that_of_the_fullest_rank_and_the_exchange():
    assert scale.step(11, 8, member_step=3.0, exchange=0.5) == 6.5
    times = {"step": {"wall": {"decile": 80.0}}, "32 x 10": {"wall": {"decile": 1.0}}}
    measured = dict.fromkeys(("1", "2", "4"), times)
    found = [scale.predicted(measured, world, "wall", cores=2) for world in ("2", "4")]
    assert found == [41.0, 41.0]  # eight members: four on a core of their own; two each at half the speed


def test_gpus_are_read_out_with_what_nccl_says_of_itself():
    assert [scale.all_gather(gpus, 0) for gpus in (1, 8, 64)] == pytest.approx([0, 0.0108, 0.1375])
    assert scale.all_gather(64, 19_000_000) == pytest.approx(0.1375 + 63 / 64)
    rows = scale.read_out({"net": {"together": 1.0, "alone": 2.0, "size": 11}})
    found = {(row["members"], row["gpus"]): row for row in rows}
    assert found[11, 1]["captured"] == 11
    assert found[11, 8]["captured"] == pytest.approx(4 + 0.01136, abs=1e-5)  # 10.8 us, and 56 kB at 88 GB/s
    assert found[64, 64]["captured"] == pytest.approx(2 + 0.15448, abs=1e-5)  # 137.5 us, and 328 kB at 19 GB/s
    assert found[64, 8]["faster"] == pytest.approx(64 / 16.01407, abs=1e-5)


def test_the_page_of_scale_has_the_steps_of_the_page_of_speed():
    assert json.loads((RESULTS / "scale/records/scale.json").read_text())["speed"] == scale.speed_of_members()


@pytest.mark.parametrize("setting", forest.SETTINGS, ids=lambda setting: f"{setting.records}, {setting.strength}")
@pytest.mark.parametrize("metric", forest.METRICS)
def test_the_forest_plot_shows_the_means_of_the_pages(setting, metric):
    content, strength, dataset = setting.content, setting.strength, setting.dataset
    rows = {row["method"]: row["figures"][metric] for row in content["means"] if row["set"].endswith(" natural")}
    deep, greedy = rows["Deep Ensembles"], rows[f"greedy, lambda_M = {strength}"]
    natural = {row["set"] for row in content["ood"] if row["kind"] == "natural"}
    choosing = natural & set(CHOOSING[dataset])
    shares = [len(part) / len(natural) for part in (choosing, natural - choosing)]  # the mean over both is the page's
    ours = forest.differences(content, strength, metric, dataset)
    assert len(ours["choosing"]) == len(ours["other"]) == greedy["seeds"]
    means = [statistics.fmean(ours[group]) for group in ("choosing", "other")]
    assert np.dot(shares, means) == pytest.approx(greedy["mean"] - deep["mean"], abs=1e-9)
    papers = forest.published(content, strength, metric, dataset)
    if greedy["paper"] is None:
        assert not papers.keys() & {"choosing", "other"}
    else:
        mean = np.dot(shares, [papers[group] for group in ("choosing", "other")])
        assert mean == pytest.approx(greedy["paper"] - deep["paper"], abs=1e-9)


def test_the_band_of_the_forest_plot_is_what_a_run_differs_from_itself():
    found = forest.chance("auc")
    page = (RESULTS / "repeats/repeats.md").read_text()
    tries = repeats.tries(RESULTS)
    for name in forest.REPEATED:
        assert repeats.shared(tries[name]).keys() == {*NOISE, "blobs", "dtd", "tiny_imagenet"}
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} "))
        assert float(row.split("|")[5]) <= found["blobs"] + 5e-4
    assert found["noise"] < 1e-3


def test_the_forest_plot_is_drawn(tmp_path):
    forest.draw(tmp_path / "forest.png")
    assert (tmp_path / "forest.png").stat().st_size > 10_000
