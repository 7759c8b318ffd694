import csv
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from greedy_ensembles import theory
from greedy_ensembles.paper import guarantee
from greedy_ensembles.paper.guarantee import make_instance, measure_cell, measure_instance
from greedy_ensembles.paper.guarantee_page import Cell, summarise
from greedy_ensembles.storage import FolderError, write_json

CELLS = [Cell("reverse_kl", 8, 2), Cell("kl", 8, 3), Cell("squared_hellinger", 9, 2)]


def test_every_generator_and_size_is_there() -> None:
    cells = set(guarantee.all_cells())
    assert set(theory.GENERATORS) < {cell.generator for cell in cells}
    assert {cell.candidates for cell in cells} == {8, 12, 16}
    assert {cell.size for cell in cells} == {2, 3, 4, 5}
    assert len(cells) == len(guarantee.GENERATORS) * 12


@pytest.mark.parametrize("generator", guarantee.GENERATORS)
def test_an_instance_measured_by_hand(generator: str) -> None:
    cell = Cell(generator, 8, 3)
    found = measure_instance(cell, seed=1, number=0)
    F, _, _ = make_instance(cell, seed=1, number=0)
    divergences = [F.divergence(list(s)) for s in itertools.combinations(range(8), 3)]
    assert found["best"] == pytest.approx(min(divergences))
    assert found["worst"] == pytest.approx(max(divergences))
    assert found["random_selection"] == pytest.approx(np.mean(divergences))
    assert found["greedy"] == pytest.approx(F.divergence(theory.lazy_greedy(F)))
    assert min(divergences) <= found["random_greedy"] <= max(divergences)
    smaller = [F(list(s)) for k in range(3) for s in itertools.combinations(range(8), k)]
    assert found["smaller_best_value"] == pytest.approx(found["worst"] + max(smaller))
    assert -1 <= found["expected_rank_correlation"] <= 1
    assert ("point_agreement" in found) == (generator == "reverse_kl")
    assert all(math.isfinite(value) for name, value in found.items() if name != "smaller_worst_value")


def test_all_generators_meet_the_same_instances() -> None:
    one, other = (make_instance(Cell(name, 8, 2), seed=1, number=3)[0] for name in ("kl", "total_variation"))
    assert np.array_equal(one.kernels, other.kernels)
    assert np.array_equal(one.density, other.density)


@pytest.mark.parametrize("name", ["squared_hellinger", "neyman_chi2", "pearson_chi2", "alpha(-0.5)"])
def test_a_power_is_the_same_divergence_without_the_line(name: str) -> None:
    power = guarantee._as_power(name)
    assert power is not None
    rng = np.random.default_rng(0)
    pairs = [rng.dirichlet(np.ones(5), 2) for _ in range(3)]
    ratios = [
        theory.f_divergence(p, q, power) / theory.f_divergence(p, q, guarantee.generator_named(name)) for p, q in pairs
    ]
    assert ratios == pytest.approx([ratios[0]] * 3)


def test_a_summary_by_hand() -> None:
    best, worst, found = [1.0, 2.0, 1.0], [5.0, 4.0, 2.0], [1.0, 3.1, 1.9]
    data = {"best": np.array(best), "worst": np.array(worst), "greedy": np.array(found)}
    bounds = [low / math.e + (1 - 1 / math.e) * high for low, high in zip(best, worst, strict=True)]
    slack = sorted(most - own for most, own in zip(bounds, found, strict=True))
    used = sorted(own / most for most, own in zip(bounds, found, strict=True))
    expected = {  # of ratios 1, .45 and .1 of values, and 1, 1.55 and 1.9 of divergences
        "value_ratio_mean": 1.55 / 3, "value_ratio_5_percent": 0.1 + 0.1 * 0.35, "value_ratio_min": 0.1,
        "below_factor": 1 / 3, "below_hardness": 2 / 3, "divergence_ratio_median": 1.55,
        "divergence_ratio_95_percent": 1.55 + 0.9 * 0.35, "divergence_ratio_max": 1.9, "optimum_found": 1 / 3,
        "slack_min": slack[0], "slack_median": slack[1], "used_median": used[1],
    }  # fmt: skip
    assert summarise(data, "greedy") == pytest.approx(expected)


def test_a_study_writes_its_page_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantee, "all_cells", lambda: CELLS)
    guarantee.run(tmp_path, instances=3, progress=False)
    text = (tmp_path / "guarantee.md").read_text()
    assert "nan" not in text
    assert (tmp_path / "guarantee.png").stat().st_size > 10_000
    rows = list(csv.DictReader((tmp_path / "records" / "guarantee.csv").read_text().splitlines()))
    assert len(rows) == 3 * 4
    table = text.partition("## By generator")[2].partition("## ")[0]
    assert sum(line.startswith("| ") for line in table.splitlines()) == 1 + 3 * 4

    kept, lost = (tmp_path / "cells" / f"{cell.name}.json" for cell in CELLS[:2])
    before, times = lost.read_text(), kept.stat().st_mtime_ns
    lost.unlink()
    results = guarantee.run(tmp_path, instances=3, progress=False)
    assert kept.stat().st_mtime_ns == times
    assert json.loads(lost.read_text())["measurements"] == json.loads(before)["measurements"]
    assert results[CELLS[1]] == measure_cell(CELLS[1], 3, 0)

    with pytest.raises(FolderError, match=r"holds a study with .*'instances': 3"):
        guarantee.run(tmp_path, instances=4, progress=False)
    write_json(kept, {"cell": "of another kind"})
    with pytest.raises(ValueError, match=f"{kept.parent} holds cells"):
        guarantee.run(tmp_path, instances=3, progress=False)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke) -> None:
    monkeypatch.setattr(guarantee, "all_cells", lambda: CELLS[:1])
    result = invoke("guarantee-study", "--out", tmp_path, "--instances", 2, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "2 instances in 1 cells" in result.output
    assert "--instances 2 --seed 3" in (tmp_path / "guarantee.md").read_text()


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="instances must be at least 1"):
        guarantee.run(tmp_path, instances=0)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        guarantee.run(tmp_path, seed=-1)
