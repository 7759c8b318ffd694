import pytest

import greedy_ensembles as ge
from greedy_ensembles.report.page import KnownPoints, build_page, dataset_of


@pytest.fixture
def train(blobs, quick, make_model, tmp_path):
    def run(name, data=blobs, **options):
        options = {"method": "deep", **options} if "strength" not in options else options
        ge.fit(make_model, data, size=2, run_dir=tmp_path / name, **{**quick, **options})
        return ge.load_run(tmp_path / name, make_model)

    return run


def test_a_part_for_each_data_set_and_runs_in_the_order_of_tables(train, blobs):
    x, y = blobs
    runs = [train("greedy", strength=1.0), train("other", (x + 1, y)), train("deep", seed=4), train("first", seed=0)]
    page = build_page(runs)
    assert [part.name for part in page.parts] == [dataset_of(runs[0]), dataset_of(runs[1])]
    assert page.title == " and ".join(part.name for part in page.parts)
    first = page.parts[0]
    assert [row["method"].value for row in first.trained.rows] == [
        "Deep Ensembles",
        "Deep Ensembles",
        "greedy, lambda_M = 1",
    ]
    assert [row["seed"].text for row in first.trained.rows] == ["0", "4", "0"]
    assert [chart.title for chart in first.planes.charts] == [
        "Deep Ensembles, seed 0",
        "Deep Ensembles, seed 4",
        "greedy, lambda_M = 1",
    ]


def test_known_points_give_the_part_its_name(train, blobs):
    x, y = (part.numpy() for part in blobs)
    asked = []
    page = build_page([train("deep")], points=lambda run: asked.append(run) or KnownPoints("clouds", x, y))
    assert page.title == "clouds"
    assert len(asked) == 1


def test_a_run_whose_model_is_not_known_has_curves_and_no_map(train, tmp_path):
    train("deep")
    (part,) = build_page([ge.load_run(tmp_path / "deep")]).parts
    assert part.planes is None
    assert len(part.runs[0].charts) == 2
    (note,) = part.notes
    assert "trained with a model of your own" in note


def test_a_damaged_run_is_refused(train, tmp_path):
    train("deep")
    (tmp_path / "deep" / "members" / "01" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ge.FolderError, match="damaged"):
        build_page([ge.load_run(tmp_path / "deep", lambda: ge.models.MLP(2, hidden=(8,)))])


def test_an_unfinished_run_is_shown_as_such(train, blobs, make_model, quick, tmp_path):
    run = train("run")
    run.members.pop()
    run.histories.pop()
    run.information["size"] = 2
    (part,) = build_page([run]).parts
    assert part.trained.rows[0]["M"].text == "1 of 2"
    assert len(part.runs[0].members) == 1


def test_runs_that_share_members_or_none_at_all_are_refused(train):
    with pytest.raises(ValueError, match="seeds at least 2 apart"):
        build_page([train("one", seed=0), train("two", seed=1)])
    with pytest.raises(ValueError, match="at least one run"):
        build_page([])
