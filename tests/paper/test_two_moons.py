"""Figure 2 by its command, with fewer members and epochs; and the committed figures."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from PIL import Image

import greedy_ensembles as ge
from greedy_ensembles.paper import two_moons

COMMITTED = Path(__file__).parents[2] / "results" / "two-moons"


@pytest.fixture(scope="module")
def out(tmp_path_factory, invoke):
    out = tmp_path_factory.mktemp("two-moons")
    (out / "records").mkdir()
    (out / "records" / "reading.md").write_text("Mine.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_moons, "STRENGTHS", (None, 10.0))
        patch.setattr(two_moons, "SIZE", 3)
        patch.setattr(two_moons, "RECIPE", dataclasses.replace(two_moons.RECIPE, epochs=60))
        done = invoke("two-moons", "--out", out, "--quiet")
    assert done.exit_code == 0, done.output
    return out


def test_the_method_is_uncertain_far_away_and_certain_at_the_data(out):
    deep, greedy = json.loads((out / "records/two-moons.json").read_text())
    assert (deep["method"], greedy["method"], greedy["strength"]) == ("deep", "greedy", 10.0)
    assert greedy["mi_far"] > deep["mi_far"] + 0.2
    assert max(deep["mi_data"], greedy["mi_data"]) < 0.15


def test_the_committed_figures_say_what_the_caption_claims():
    results = json.loads((COMMITTED / "records/two-moons.json").read_text())
    assert [result["strength"] for result in results] == [None, 0.1, 1.0, 10.0]
    far = [result["mi_far"] for result in results]
    assert far[0] < 0.1  # Deep Ensembles stay certain
    assert abs(far[1] - far[0]) < 0.05  # so little is within the noise of seeds
    assert far[1] < far[2] < far[3]
    assert far[3] > 0.9 * math.log(2)  # lambda_M = 10 knows nothing out there, as it should
    for result in results:
        assert result["accuracy"] > 0.88  # the noise of 0.3 allows about 0.91
        assert result["mi_data"] < 0.1


def test_the_picture_has_a_panel_for_each_ensemble(out):
    with Image.open(out / "two-moons.png") as picture:
        width, height = picture.size
    assert 1.2 < width / height < 2.5


@pytest.mark.parametrize("committed", [False, True])
def test_the_page_shows_the_figures_of_the_json_below_what_a_person_wrote(out, committed):
    folder = COMMITTED if committed else out
    page = (folder / "two-moons.md").read_text()
    assert page.startswith(f"# Two moons\n\n{(folder / 'records/reading.md').read_text()}")
    for result in json.loads((folder / "records/two-moons.json").read_text()):
        assert f"| {result['mi_data']:.4f} | {result['mi_far']:.4f} |" in page


def test_the_runs_are_there_to_be_read(out):
    run = ge.load_run(out / "runs" / "greedy-10")
    assert run.finished
    assert len(run.ensemble) == 3
    assert all(len(history) == 60 for history in run.histories)
