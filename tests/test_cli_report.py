"""`greedy-ensembles report`, on a tiny MNIST in the published format and on two moons."""

import re
import shutil

import pytest

import greedy_ensembles as ge
from greedy_ensembles.paper import two_moons


@pytest.fixture(scope="module")
def home(make_home):
    two = ["--set", "epochs=2"]
    return make_home("reported_model", {"deep": ["--method", "deep", *two], "greedy": ["--strength", 1, *two]})


@pytest.fixture
def report(invoke, home, tmp_path, monkeypatch):
    monkeypatch.chdir(home)

    def run(*arguments, model="reported_model:make", out=tmp_path / "page.html"):
        done = invoke("report", *arguments, "--out", out, "--root", "data", "--device", "cpu", "--model", model)
        return done, out.read_text() if out.is_file() else ""

    return run


def test_runs_are_evaluated_and_shown(report):
    done, page = report("deep", "greedy", "--ood", "noise.npy")
    assert done.exit_code == 0, done.output
    assert "Wrote" in done.output
    assert "mnist: evaluation" in page
    assert re.search(r"OOD sets \(positive\) .*40 images of mnist, by mutual information", page)
    assert "partial: 40 of 10,000 images" in page
    assert page.count('<article class="view">') == 1
    shown = re.findall(r"<img [^>]*alt=\"Image \d+ of (noise\.npy|mnist);", page)
    assert [shown.count(name) for name in ("mnist", "noise.npy")] == [3 * 8, 3 * 8]  # three galleries of each
    assert "Diversity term" in page


def test_without_an_evaluation(report):
    done, page = report("deep", "--no-evaluate")
    assert done.exit_code == 0, done.output
    assert "mnist: what was trained" in page
    assert "mnist: evaluation" not in page


def test_what_keeps_runs_from_being_evaluated_is_said_on_the_page(report, home, tmp_path):
    shutil.copytree(home / "greedy", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "members" / "02")
    done, page = report(tmp_path / "half", "deep", "--ood", "noise.npy")
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'half'} is not finished, and was not evaluated." in page
    assert f"{tmp_path / 'half'} is not finished" in done.stderr
    assert "mnist: evaluation" in page
    (home / "data" / "mnist").rename(home / "data" / "elsewhere")
    try:
        done, page = report("deep", "--ood", "noise.npy")
    finally:
        (home / "data" / "elsewhere").rename(home / "data" / "mnist")
    assert done.exit_code == 0, done.output
    assert "Not evaluated: mnist (test) is not in data" in page


def test_two_moons_have_a_map_with_their_points_and_need_no_data(invoke, tmp_path):
    x, y = two_moons._moons(5)
    for strength in (None, 10.0):
        ge.fit(
            lambda: ge.models.MLP(2, hidden=(16,)),
            (x, y),
            size=2,
            method="deep" if strength is None else "greedy",
            strength=strength,
            recipe=ge.Recipe(epochs=10),
            seed=5,
            run_dir=tmp_path / f"{strength}",
            progress=False,
        )
    (tmp_path / "moons_model.py").write_text("import greedy_ensembles as ge\nmake = lambda: ge.models.MLP(2, (16,))\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = invoke("report", "None", "10.0", "--out", "page.html", "--model", "moons_model:make")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "<h1>two moons</h1>" in page
    assert page.count('<div class="slide"') == 2
    assert "mean at the 300 points" in page


def test_other_points_are_not_claimed_to_be_two_moons(blobs, make_model, quick, tmp_path):
    ge.fit(make_model, blobs, size=1, method="deep", run_dir=tmp_path / "run", **quick)
    assert two_moons.known_points(ge.load_run(tmp_path / "run")) is None


def test_runs_of_our_models_beside_those_of_your_own(train_run, report, home):
    train_run(home, "ours", model="PreResNet8")
    done, page = report("deep", "ours", "--ood", "noise.npy")
    assert done.exit_code == 0, done.output
    assert "PreResNet" in page
    assert "reported_model.make" in page


def test_a_data_set_of_your_own_has_no_test_set_to_be_found(report, home, tmp_path):
    import reported_model

    images = ge.data.load("mnist", "train", home / "data").replace(name="mine")
    options = {"recipe": ge.Recipe(epochs=1), "progress": False, "device": "cpu", "validation": 0}
    ge.fit(reported_model.make, images, size=1, method="deep", run_dir=tmp_path / "mine", **options)
    done, page = report(tmp_path / "mine")
    assert done.exit_code == 0, done.output
    assert "Not evaluated: of mine nothing was held out" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deep", "deep"], "deep is named twice"),
        (["nowhere"], "nowhere does not exist"),
        (["deep", "--ood", "unifrom"], "did you mean 'uniform'"),
        (["deep", "--ood", "uniform", "--no-evaluate"], "leave it or --no-evaluate out"),
    ],
)
def test_mistakes_are_one_line(report, arguments, message):
    done, page = report(*arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
    assert page == ""


def test_a_folder_for_a_file_and_a_model_that_is_missing(report, home, tmp_path):
    done, _ = report("deep", "--no-evaluate", out=tmp_path)
    assert f"--out must be a file, but {tmp_path} is a folder" in done.output
    done, _ = report("deep", model="reported_model:nothing")
    assert "cannot be imported" in done.output
