import numpy as np
import pytest

import greedy_ensembles as ge
from greedy_ensembles.report.planes import KnownPoints, maps, takes_points


@pytest.fixture
def run(blobs, quick, make_model, tmp_path):
    def train(strength):
        method = "deep" if strength is None else "greedy"
        folder = tmp_path / f"{strength}"
        ge.fit(make_model, blobs, size=2, method=method, strength=strength, run_dir=folder, **quick)
        return ge.load_run(folder, make_model)

    return train


def test_maps_are_in_order_of_the_strength(run):
    labelled = [("strong", run(10.0)), ("deep", run(None)), ("weak", run(0.5))]
    shown = maps(labelled)
    assert [chart.title for chart, _ in shown] == ["deep", "weak", "strong"]
    grid = np.stack(np.meshgrid(*[np.linspace(-8, 8, 161, dtype=np.float32)] * 2), -1).reshape(-1, 2)
    for label, of_label in labelled:
        highest = float(of_label.ensemble.uncertainty(grid).epistemic.max())
        (caption,) = (caption for chart, caption in shown if chart.title == label)
        assert f"highest {highest:.3f}" in caption
    assert all("data:image/png" in chart.svg for chart, _ in shown)


def test_points_are_drawn_where_they_are_known(run, blobs):
    x, y = (part.numpy() for part in blobs)
    ((chart, caption),) = maps([("deep", run(None))], KnownPoints("blobs", x, y))
    assert chart.svg.count("#ff9d4d") == chart.svg.count("#ffffff") == 30
    assert "mean at the 60 points" in caption


def test_only_runs_on_two_numbers_have_a_plane(run, blobs, quick, tmp_path):
    assert takes_points(run(None))
    x, y = blobs
    ge.fit(lambda: ge.models.MLP(3), (x.repeat(1, 2)[:, :3], y), size=1, method="deep", run_dir=tmp_path / "3", **quick)
    assert not takes_points(ge.load_run(tmp_path / "3"))
