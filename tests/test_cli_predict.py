"""`greedy-ensembles calibrate` and `predict`, on a tiny MNIST in the published format."""

import csv
import io
import re
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

import greedy_ensembles as ge


@pytest.fixture(scope="module")
def built(make_home, train_run):
    """A folder with data, a module with a model, pictures, and runs of that model and of one of ours."""
    options = ["--method", "deep", "--validation", 0.3]
    home = make_home("predicted_model", {"own": options}, examples=150)
    train_run(home, "known", *options, model="PreResNet8")
    (home / "pictures").mkdir()
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 256, (40, 50, 3), np.uint8)).save(home / "pictures" / "photo.png")
    Image.fromarray(np.full((28, 28), 25, np.uint8)).save(home / "pictures" / "one.png")
    np.save(home / "digits.npy", ge.data.load("mnist", "train", home / "data").images[:20, 0])
    np.save(home / "table.npy", np.zeros((3, 2), np.float32))
    return home


@pytest.fixture
def home(built, tmp_path, monkeypatch):
    """A copy, since calibrations are written into runs."""
    shutil.copytree(built, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def rows(text):
    return list(csv.DictReader(text.splitlines()))


def test_calibrate_and_then_predict(invoke, home):
    done = invoke("calibrate", "known", "--fpr", 0.1, "--root", "data")
    assert done.exit_code == 0, done.output
    written = ge.storage.read_json(home / "known" / "calibration.json")
    assert (written["fpr"], written["inputs"], written["source"]) == (0.1, 45, "mnist, held out")
    assert f"{written['threshold']:.4g}" in done.output
    # From here on without the data: what is needed of them was kept.
    done = invoke("predict", "known", "pictures", "digits.npy", "--out", "scores.csv", "--root", "nowhere")
    assert done.exit_code == 0, done.output
    assert "grey" in done.stderr
    table = rows((home / "scores.csv").read_text())
    assert [row["input"] for row in table[:3]] == ["pictures/one.png", "pictures/photo.png", "digits.npy[0]"]
    assert len(table) == 22
    assert {row["flagged"] for row in table} <= {"yes", "no"}
    assert f"{sum(row['flagged'] == 'yes' for row in table)} of them flagged" in done.output
    probs = ge.load_run("known").ensemble.predict_proba(np.load("digits.npy")[:, None]).double()
    information = ge.metrics.mutual_information(probs).numpy()
    assert [float(row["mutual_information"]) for row in table[2:]] == pytest.approx(information, rel=1e-3, abs=1e-6)
    assert [row["class"] for row in table[2:]] == [str(int(k)) for k in probs.mean(0).argmax(1)]


def test_without_a_calibration_there_are_no_flags_and_a_line_says_how_to_get_them(invoke, home):
    done = invoke("predict", "own", "pictures/one.png", "--model", "predicted_model:make", "--root", "data")
    assert done.exit_code == 0, done.output
    assert re.search(r"no flags: .*not calibrated; `greedy-ensembles calibrate own`", done.stderr)
    (row,) = rows(done.stdout)
    assert "flagged" not in row
    assert float(row["total"]) == pytest.approx(float(row["aleatoric"]) + float(row["mutual_information"]), abs=1e-4)


def test_a_run_with_more_members_is_no_longer_calibrated(invoke, train_run, home):
    invoke("calibrate", "known", "--root", "data")
    train_run(home, "known", "--method", "deep", "--validation", 0.3, "--size", 3, model="PreResNet8")
    done = invoke("predict", "known", "pictures/one.png", "--root", "data")
    assert "no flags: calibration.json is of other weights" in done.stderr


def test_a_broken_picture_is_named_and_the_others_are_predicted(invoke, home):
    (home / "pictures" / "broken.png").write_bytes(b"")
    done = invoke("predict", "known", "pictures", "--out", "scores.csv", "--root", "data")
    assert done.exit_code == 1
    assert re.search(r"broken\.png .*readable picture: .*no format", done.stderr)
    assert "error: 1 of 3 could not be read" in done.stderr
    assert len(rows((home / "scores.csv").read_text())) == 2
    done = invoke("calibrate", "known", "--on", "pictures", "--fpr", 0.5, "--root", "data")
    assert done.exit_code == 1
    assert not (home / "known" / "calibration.json").exists()


@pytest.mark.parametrize("archive", ["zip", "tar"])
def test_a_broken_picture_in_an_archive_does_not_end_it(invoke, home, archive):
    content = (home / "pictures" / "one.png").read_bytes()
    path = home / f"a[b].{archive}"  # square brackets are no markup
    if archive == "zip":
        with zipfile.ZipFile(path, "w") as opened:
            for name in ("1.png", "2.png"):
                opened.writestr(name, content)
        path.write_bytes(path.read_bytes().replace(content, content[:-9] + b"x" + content[-8:], 1))  # a wrong CRC
    else:
        with tarfile.open(path, "w") as opened:
            for name in ("1.png", "2.png"):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                opened.addfile(entry, io.BytesIO(content if name == "2.png" else bytes(len(content))))
    done = invoke("predict", "known", path.name, "--root", "data")
    assert done.exit_code == 1
    assert path.name in done.stderr
    assert "1.png" in done.stderr
    assert "error: 1 of 2 could not be read" in done.stderr
    assert [row["input"] for row in rows(done.stdout)] == [f"{path.name}/2.png"]


def test_a_saved_ensemble_needs_a_model_and_where_it_does_not_know_it_a_shape(invoke, home):
    own = ["--model", "predicted_model:make"]
    import predicted_model

    ensemble = ge.load_run("own", predicted_model.make).ensemble
    ensemble.save("trained here")
    done = invoke("predict", "trained here", "pictures", *own)  # which says what images are like
    assert done.exit_code == 0, done.output
    ge.Ensemble.from_members(ensemble).save("saved")
    assert "does not name its model" in invoke("predict", "saved", "pictures").output
    done = invoke("predict", "saved", "pictures", *own)
    assert done.exit_code == 1
    assert re.search(r"not known what images .*--shape 3x32x32", done.output)
    done = invoke("calibrate", "saved", "--on", "digits.npy", "--fpr", 0.2, *own)
    assert done.exit_code == 0, done.output
    done = invoke("predict", "saved", "pictures", *own)  # the calibration says what images are like
    assert done.exit_code == 0, done.output
    assert "flagged" in rows(done.stdout)[0]
    done = invoke("predict", "saved", "pictures", *own, "--shape", "1x28x28")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "nowhere", "pictures"], "nowhere does not exist"),
        (["predict", "pictures", "pictures"], "pictures holds neither a run"),
        (["calibrate", "nowhere"], "nowhere does not exist"),
        (["predict", "known", "table.npy"], "must be uint8"),
        (["predict", "known", "pictures", "--shape", "28"], "as in 3x32x32"),
        (
            ["predict", "known", "pictures", "--shape", "3x28x28"],
            "x holds uint8 of shape (3, 28, 28), and the ensemble was trained on",
        ),
        (["predict", "known", "pictures", "--out", "data"], "--out must be a file, but data is a folder"),
        (["predict", "own", "pictures"], "trained with a model of your own"),
        (["predict", "own", "pictures", "--model", "predicted_model:nothing"], "cannot be imported"),
        (["calibrate", "known", "--fpr", "1.5"], "fpr must be below 1"),
        (["calibrate", "known", "--fpr", "0.001"], "needs 999 in-domain inputs or more to be found from, got 45"),
        (["calibrate", "known", "--shape", "3x28x28"], "--shape is for inputs that --on names"),
        (["calibrate", "known", "--root", "nowhere"], "data download mnist"),
    ],
)
def test_mistakes_are_one_line(invoke, home, arguments, message):
    root = [] if "--root" in arguments else ["--root", "data"]
    done = invoke(*arguments, *root)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
    assert "ensemble.inputs" not in done.output  # which is Python
