import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from greedy_ensembles.paper import illustrate


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, invoke) -> Path:
    folder = tmp_path_factory.mktemp("figure") / "one"
    result = invoke("illustrate", "--out", folder)
    assert result.exit_code == 0, result.output
    assert "illustrate.png" in result.output
    return folder


def figures_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "records/illustrate.json").read_text())  # type: ignore[no-any-return]


def test_the_picture_is_a_wide_one(out: Path) -> None:
    header = (out / "illustrate.png").read_bytes()[:24]
    width, height = (int.from_bytes(header[place : place + 4], "big") for place in (16, 20))
    assert header.startswith(b"\x89PNG")
    assert width > 2.5 * height


def test_the_figures_are_over_twenty_seeds(out: Path) -> None:
    figures = figures_of(out)
    assert len(figures["seeds"]) == 20
    assert [row["approach"] for row in figures["approaches"]] == ["random modes", "naive diversity", "greedy"]
    for row in figures["approaches"]:
        assert set(row["divergence"]) == set(illustrate.GENERATORS)
        for spread in row["divergence"].values():
            assert len(spread["values"]) == 20
            assert spread["mean"] == pytest.approx(np.mean(spread["values"]))
            assert spread["standard_deviation"] == pytest.approx(statistics.stdev(spread["values"])) != 0
            assert np.isfinite(spread["values"]).all()


def test_greedy_is_better_than_either_on_every_seed_and_than_naive_diversity_of_any_strength(out: Path) -> None:
    figures = figures_of(out)
    random, naive, greedy = (row["divergence"] for row in figures["approaches"])
    for name in illustrate.GENERATORS:
        assert max(greedy[name]["values"]) < min(random[name]["values"])
        assert max(greedy[name]["values"]) < min(naive[name]["values"])
    sweep = figures["naive_reverse_kl_by_strength"]
    assert sweep["0.02"] == pytest.approx(naive["reverse_kl"]["mean"])
    assert min(sweep.values()) > 2 * greedy["reverse_kl"]["mean"]


def test_naive_diversity_is_greedy_on_pairs() -> None:
    centres, heights = np.linspace(-2, 3, 30), np.random.default_rng(0).normal(size=30)
    chosen: list[int] = []
    for _ in range(illustrate.SIZE):
        outside = [i for i in range(30) if i not in chosen]
        gains = [heights[i] + 0.3 * sum((centres[i] - centres[j]) ** 2 for j in chosen) for i in outside]
        chosen.append(outside[int(np.argmax(gains))])
    assert illustrate._naive(centres, heights, 0.3) == chosen


def test_the_seed_decides(out: Path, tmp_path: Path) -> None:
    illustrate.run(tmp_path / "same")
    assert figures_of(tmp_path / "same") == figures_of(out)
    illustrate.run(tmp_path / "other", seed=5)
    same, other = (
        figures_of(tmp_path / name)["approaches"][2]["divergence"]["kl"]["values"] for name in ("same", "other")
    )
    assert same[5:] == other[:15]  # seeds 5..19 are in both


def test_the_density_is_one_with_several_modes_and_a_long_tail() -> None:
    total = quad(
        lambda z: float(illustrate.density_at(np.array(z))), -12, 60, points=[-4, -1.5, 0, 7, 11.5], limit=200
    )[0]
    assert total == pytest.approx(1, abs=1e-6)
    z = np.linspace(-7, 16, 4000)
    values = illustrate.density_at(z)
    modes = (values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])
    assert modes.sum() == 4
    mean = (z * values).sum() / values.sum()
    assert ((z - mean) ** 3 * values).sum() > 0  # skewed to the right


def test_ascents_end_in_the_mode_uphill() -> None:
    heights = np.array([0.0, 1.0, 3.0, 2.0, 1.0, 2.0, 5.0])
    assert [illustrate._ascend(heights, start) for start in range(7)] == [2, 2, 2, 2, 2, 6, 6]
