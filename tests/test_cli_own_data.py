"""Data of one's own on the command line, from a folder, an array or a table to flags; on a saved ensemble, too."""

import csv
import io
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import greedy_ensembles as ge
from greedy_ensembles.runs.notes import WeakMemberWarning
from greedy_ensembles.saving import VALIDATION, read_held_out

KINDS = ("dark", "light", "red")


def picture(kind, number):
    """A small picture of one's own, of any size and mode; its brightness or colour tells what it is."""
    rng = np.random.default_rng([KINDS.index(kind), number])
    colour = {"dark": (20, 20, 20), "light": (230, 230, 230), "red": (230, 20, 20)}[kind]
    pixels = np.array(colour) + rng.integers(-15, 16, (10 + number % 3, 12, 3))
    mode = "RGBA" if number == 1 else "L" if number == 2 and kind != "red" else "RGB"
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


@pytest.fixture(scope="module")
def home(tmp_path_factory, invoke):
    """A folder with photos, a table and arrays of one's own, and a run on each, trained in a moment."""
    home = tmp_path_factory.mktemp("own")
    for kind in KINDS:
        (home / "photos" / kind).mkdir(parents=True)
        for number in range(20):
            picture(kind, number).save(home / "photos" / kind / f"[{number}].png")
    (home / "photos" / "red" / "broken.png").write_bytes(b"no picture")
    (home / "other").mkdir()
    for number in range(5):
        noise = np.random.default_rng(number).integers(0, 256, (12, 12, 3)).astype(np.uint8)
        Image.fromarray(noise).save(home / "other" / f"{number}.png")
    (home / "other" / "broken.jpg").write_bytes(b"no picture")
    rows = np.random.default_rng(0).normal(size=(90, 2)) * (1, 1000) + (5, 0)
    with (home / "table.csv").open("w") as file:
        print("size,id,weight,kind", file=file)
        for number, (size, weight) in enumerate(rows):
            print(size, number, weight, "heavy" if weight > 0 else "slight", sep=",", file=file)
    images = np.repeat(np.arange(60, dtype=np.uint8) % 2 * 200, 64).reshape(60, 8, 8)
    np.savez(home / "arrays.npz", x=images, y=np.arange(60) % 2)
    for name, options in {
        "photos": ["--shape", "3x8x8", "--strength", "1"],
        "table.csv": ["--target", "kind", "--leave-out", "id"],
        "arrays.npz": [],
    }.items():
        done = train(invoke, home, name, *options)
        assert done.exit_code == 0, done.output
    return home


def train(invoke, home, name, *options, out=None):
    fixed = ["--size", 2, "--out", home / "runs" / (out or name), "--device", "cpu", "--quiet", "--set", "epochs=3"]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.chdir(home)
        warnings.simplefilter("ignore", WeakMemberWarning)
        return invoke("train", name, *fixed, *options)


@pytest.fixture
def at_home(home, monkeypatch):
    monkeypatch.chdir(home)
    return home


@pytest.fixture(params=["run", "saved"])
def photos(request, at_home, tmp_path):
    """The run on photos, or the ensemble that was saved from it."""
    folder = at_home / "runs" / "photos"
    if request.param == "saved":
        ge.load_run(folder).ensemble.save(tmp_path / "saved")
        folder = tmp_path / "saved"
    return folder


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_keeps_the_names_of_classes_and_a_part_that_had_no_say_in_training(home):
    data = ge.load_run(home / "runs" / "photos").information["data"]
    assert (data["name"], data["classes"], data["shape"]) == ("photos", list(KINDS), [3, 8, 8])
    assert data["images"] == 48
    assert "1 of 61" in data["note"]
    kept = read_held_out(home / "runs" / "photos")
    assert np.bincount(kept.labels).tolist() == [4, 4, 4]
    whole = ge.data.read_parts(home / "photos", 8, unreadable=[])["train"]
    trained, held = whole.split(0.2)
    assert np.array_equal(kept.images, held.images)
    assert not {image.tobytes() for image in trained.images} & {image.tobytes() for image in kept.images}


def test_photos_are_evaluated_calibrated_predicted_and_reported(photos, invoke, tmp_path):
    done = invoke("evaluate", photos, "--ood", "other", "--device", "cpu", "--out", tmp_path / "tables")
    assert done.exit_code == 0, done.output
    found = table((tmp_path / "tables" / "evaluation.csv").read_text())
    images = {row["set"]: row["images"] for row in found if row["kind"] in ("in-domain", "synthetic", "natural")}
    noise = dict.fromkeys(("bernoulli", "blobs", "gaussian", "uniform"), "12")
    assert images == {"photos, held out": "12", **noise, "other": "5"}
    assert "1 of 6 pictures could not be read (" in done.output
    assert "2 members on 5 images of other" in done.stderr  # there is no terminal, so that progress is in lines
    done = invoke("calibrate", photos, "--fpr", "0.2", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "12 (photos, held out)" in done.output
    done = invoke("predict", photos, "photos/red", "other", "--device", "cpu", "--out", tmp_path / "scores.csv")
    assert done.exit_code == 1
    assert "broken.png" in done.output
    assert "broken.jpg" in done.output
    rows = table((tmp_path / "scores.csv").read_text())
    assert len(rows) == 25
    assert "photos/red/[0].png" in {row["input"] for row in rows}
    assert {row["class"] for row in rows} <= set(KINDS)
    assert {row["flagged"] for row in rows} <= {"yes", "no"}
    if photos.name == "photos":  # the report on a run is among the documents' commands
        return
    done = invoke("report", photos, "--out", tmp_path / "page.html", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "photos, held out" in (tmp_path / "page.html").read_text()


def test_labelled_data_may_be_named_and_its_classes_are_known_by_name(photos, invoke, tmp_path):
    (tmp_path / "new" / "red").mkdir(parents=True)
    for number in range(30, 40):
        picture("red", number).save(tmp_path / "new" / "red" / f"{number}.png")
    options = ["--on", tmp_path / "new", "--device", "cpu", "--out", tmp_path / "tables"]
    done = invoke("evaluate", photos, *options)
    assert done.exit_code == 0, done.output
    found = table((tmp_path / "tables" / "evaluation.csv").read_text())
    ensemble = ge.load_run(photos).ensemble
    images = ge.data.read(tmp_path / "new", 8)
    right = ensemble.predict_proba(images).mean(0).argmax(1) == KINDS.index("red")
    accuracy = next(float(row["mean"]) for row in found if row["metric"] == "accuracy")
    assert accuracy == pytest.approx(float(right.float().mean()))
    (tmp_path / "new" / "blue").mkdir()
    picture("red", 50).save(tmp_path / "new" / "blue" / "1.png")
    assert "'blue'" in invoke("evaluate", photos, *options).output


def test_a_table_is_known_by_its_columns(at_home, invoke, tmp_path):
    run = at_home / "runs" / "table.csv"
    assert ge.load_run(run).information["data"]["columns"] == ["size", "weight"]
    kept = read_held_out(run)
    assert (kept.columns, kept.classes, len(kept)) == (("size", "weight"), ("heavy", "slight"), 18)
    (tmp_path / "new.csv").write_text("weight,size\n3000,5\n-3000,5\n")  # in another order, and without labels
    assert invoke("calibrate", run, "--fpr", "0.1", "--device", "cpu").exit_code == 0
    done = invoke("predict", run, tmp_path / "new.csv", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert [row["class"] for row in table(done.stdout)] == ["heavy", "slight"]
    done = invoke("evaluate", run, "--ood", tmp_path / "new.csv", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "18 rows" in done.output
    done = invoke("evaluate", run, "--on", "table.csv", "--device", "cpu")
    assert "90 rows" in done.output
    assert "trained on this file" in done.output
    (tmp_path / "others.csv").write_text(Path("table.csv").read_text())
    assert "trained on" not in invoke("evaluate", run, "--on", tmp_path / "others.csv", "--device", "cpu").output
    assert invoke("report", run, "--out", tmp_path / "page.html", "--device", "cpu").exit_code == 0
    done = invoke("predict", run, "other", "--device", "cpu")
    assert done.exit_code == 1
    assert ".csv" in done.output
    assert "--shape" not in done.output


def test_columns_are_standardised_by_what_is_trained_on(home):
    run = ge.load_run(home / "runs" / "table.csv")
    train, _ = ge.data.read_table(home / "table.csv", "kind", leave_out=["id"]).split(0.2)
    mean, std = run.configuration["recipe"]["normalize"]
    assert mean == pytest.approx(train.rows.mean(axis=0).tolist())
    assert std == pytest.approx(train.rows.std(axis=0).tolist())


def test_lambda_is_chosen_on_the_part_that_selected_epochs(at_home, invoke):
    runs = [at_home / "runs" / name for name in ("table.csv", "deep", "greedy-2", "deep-2")]
    for run, *options in (
        (runs[1], "--method", "deep"),
        (runs[2], "--seed", 2),
        (runs[3], "--method", "deep", "--seed", 2),
    ):
        columns = ["--target", "kind", "--leave-out", "id"]
        assert train(invoke, at_home, "table.csv", *columns, *options, out=run.name).exit_code == 0
    for run in map(ge.load_run, runs):
        part = read_held_out(run.folder, VALIDATION)
        right = run.ensemble.predict_proba(part.rows).argmax(dim=2).numpy() == part.labels
        best = [max(epoch["validation_accuracy"] for epoch in history) for history in run.histories]
        assert right.mean(axis=1) == pytest.approx(best)
    done = invoke("select", *runs)
    assert done.exit_code == 0, done.output
    assert "table.csv, validation, 8 examples" in done.output
    assert "table.csv, held out, 18 examples" in invoke("select", *runs, "--split", "test").output
    (runs[0] / VALIDATION).unlink()
    assert "table.csv keeps no validation part" in invoke("select", *runs).stderr


def test_arrays_are_taken_as_they_are(at_home, invoke):
    run = at_home / "runs" / "arrays.npz"
    assert ge.load_run(run).information["data"]["shape"] == [1, 8, 8]
    done = invoke("predict", run, "arrays.npz", "--device", "cpu")
    assert len(table(done.stdout)) == 60


def test_folders_of_parts_are_used_as_they_are_named(home, invoke):
    for part, numbers in {"": range(6), "val": range(6, 8), "test": range(8, 12)}.items():
        for kind in KINDS[:2]:
            (home / "parts" / part / kind).mkdir(parents=True, exist_ok=True)
            for number in numbers:
                picture(kind, number).save(home / "parts" / part / kind / f"{number}.png")
    done = train(invoke, home, "parts", "--shape", "1x8x8")
    assert done.exit_code == 0, done.output
    run = ge.load_run(home / "runs" / "parts")
    parts = ge.data.read_parts(home / "parts", 8, 1)
    assert run.information["data"]["images"] == 12
    assert isinstance(run.configuration["validation"], str)  # the hash of data of its own
    assert np.array_equal(read_held_out(run.folder).images, parts["test"].images)
    assert "--test" in train(invoke, home, "parts", "--test", "0.5", out="refused").output


def test_runs_that_held_out_other_inputs_are_not_compared_and_those_without_need_to_be_told(at_home, invoke):
    assert train(invoke, at_home, "arrays.npz", "--test", "0.5", out="half").exit_code == 0
    assert train(invoke, at_home, "arrays.npz", "--test", "0", out="none").exit_code == 0
    runs = at_home / "runs"
    for folders in (["arrays.npz", "half"], ["none"]):
        done = invoke("evaluate", *(runs / name for name in folders), "--device", "cpu")
        assert done.exit_code == 1
        assert "--on" in done.output
    assert "--on" in invoke("calibrate", runs / "none", "--device", "cpu").output
    assert invoke("evaluate", runs / "none", "--on", "arrays.npz", "--device", "cpu").exit_code == 0


def test_runs_that_know_other_classes_or_columns_are_not_judged_by_the_labels_of_one(home, invoke, tmp_path):
    for start, kinds in {"first": KINDS[1:], "second": KINDS}.items():  # of the second, "light" is another number
        for part, numbers in {"train": range(10), "test": range(10, 14)}.items():
            for kind in kinds if part == "train" else KINDS[1:]:
                folder = tmp_path / start / "pets" / part / kind
                folder.mkdir(parents=True)
                for number in numbers:
                    picture(kind, number).save(folder / f"{number}.png")
        assert train(invoke, tmp_path / start, "pets", "--shape", "3x8x8").exit_code == 0
    runs = [tmp_path / start / "runs" / "pets" for start in ("first", "second")]
    assert np.array_equal(*(read_held_out(run).images for run in runs))
    done = invoke("evaluate", *runs, "--device", "cpu")
    assert done.exit_code == 1
    assert "did not hold out the same examples" in done.output
    on = tmp_path / "first" / "pets" / "test"
    done = invoke("evaluate", *runs, "--on", on, "--device", "cpu")
    assert done.exit_code == 1
    assert "the same classes" in done.output
    assert invoke("evaluate", runs[1], "--on", on, "--device", "cpu").exit_code == 0
    rows = [line.split(",") for line in (home / "table.csv").read_text().splitlines()]
    (tmp_path / "turned.csv").write_text("\n".join(",".join((row[2], row[1], row[0], row[3])) for row in rows))
    assert train(invoke, tmp_path, "turned.csv", "--target", "kind", "--leave-out", "id").exit_code == 0
    tables = [home / "runs" / "table.csv", tmp_path / "runs" / "turned.csv"]
    done = invoke("evaluate", *tables, "--on", home / "table.csv", "--device", "cpu")
    assert done.exit_code == 1
    assert "the same columns" in done.output


def test_a_run_that_knows_numbers_of_classes_alone_is_judged_by_folders_that_are_numbers(home, invoke, tmp_path):
    whole = ge.data.read_parts(home / "photos", 8, unreadable=[])["train"]
    make_model = partial(ge.models.PreResNet, 8, classes=3)
    recipe = ge.Recipe(epochs=3, batch_size=16, optimizer="adamw", lr=3e-3)
    run = tmp_path / "run"
    trained = ge.fit(make_model, (whole.images, whole.labels), size=2, recipe=recipe, run_dir=run, progress=False)
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "red").symlink_to(home / "photos" / "red")
    done = invoke("evaluate", run, "--on", tmp_path / "named", "--device", "cpu")
    assert done.exit_code == 1
    assert "'red'" in done.output
    done = invoke("evaluate", home / "runs" / "photos", run, "--on", tmp_path / "named", "--device", "cpu")
    assert done.exit_code == 1
    assert "without names" in done.output
    (tmp_path / "named").rename(tmp_path / "numbered")
    (tmp_path / "numbered" / "red").rename(tmp_path / "numbered" / "2")
    options = ["--on", tmp_path / "numbered", "--device", "cpu", "--out", tmp_path / "tables"]
    done = invoke("evaluate", run, *options)
    assert done.exit_code == 0, done.output
    found = table((tmp_path / "tables" / "evaluation.csv").read_text())
    accuracy = next(float(row["mean"]) for row in found if row["metric"] == "accuracy")
    right = trained.predict_proba(whole.images[whole.labels == 2]).mean(0).argmax(1) == 2
    assert accuracy == pytest.approx(float(right.float().mean()))


def test_an_ood_set_that_is_named_twice_or_holds_what_is_judged_on_is_told_of(photos, invoke, monkeypatch):
    done = invoke("evaluate", photos, "--ood", "other", "--ood", "./other", "--device", "cpu")
    assert done.exit_code == 1
    assert "twice" in done.output
    monkeypatch.setenv("COLUMNS", "200")
    done = invoke("evaluate", photos, "--ood", "photos", "--device", "cpu")
    assert "12 of these 60 images are in photos, held out, too" in done.output


def test_a_constant_column_does_not_decide_where_new_rows_have_another_number(invoke, tmp_path):
    size = np.random.default_rng(0).normal(size=90) + np.arange(90) % 2 * 6
    rows = [f"{each},{{}},{'-1' if number % 2 else '+'}" for number, each in enumerate(size)]
    for name, constant in {"table": 0.1, "same": 0.1, "other": 0.2}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["size,constant,kind", *rows]).format(*[constant] * 90))
    assert train(invoke, tmp_path, "table.csv", "--target", "kind").exit_code == 0
    run = tmp_path / "runs" / "table.csv"
    assert ge.load_run(run).configuration["recipe"]["normalize"][1][1] == 1
    one, other = (
        [row["class"] for row in table(invoke("predict", run, tmp_path / f"{name}.csv", "--device", "cpu").stdout)]
        for name in ("same", "other")
    )
    assert set(one) == {"-1", "+"}  # as they are called in the table, without a quote before
    assert np.mean(np.array(one) == np.array(other)) > 0.9


def test_arrays_that_are_no_squares_are_judged_as_they_are(invoke, tmp_path):
    images = np.repeat(np.arange(60, dtype=np.uint8) % 2 * 200, 48).reshape(60, 8, 6)
    np.savez(tmp_path / "wide.npz", x=images, y=np.arange(60) % 2)
    assert train(invoke, tmp_path, "wide.npz").exit_code == 0
    done = invoke("evaluate", tmp_path / "runs" / "wide.npz", "--on", tmp_path / "wide.npz", "--device", "cpu")
    assert done.exit_code == 0, done.output


def test_repetitions_are_judged_on_the_same_inputs(at_home, invoke):
    assert train(invoke, at_home, "arrays.npz", "--seed", "2", out="again").exit_code == 0
    done = invoke("evaluate", at_home / "runs" / "arrays.npz", at_home / "runs" / "again", "--device", "cpu")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("data", "options", "told"),
    [
        ("photo", [], "photos?"),
        ("other", [], "class"),
        ("table.csv", [], "--target"),
        ("table.csv", ["--target", "kinds"], "--target, a column of table.csv, must be one of"),
        ("table.csv", ["--target", "kind", "--model", "PreResNet8"], "--model"),
        ("table.csv", ["--target", "kind", "--shape", "3x8x8"], "--shape"),
        ("photos", ["--target", "kind"], "--target"),
        ("photos", ["--paper"], "--paper"),
        ("photos", ["--test", "1"], "--test"),
        ("photos", ["--test", "0.01"], "--test"),
        ("photos", ["--validation", "0.01"], "--validation"),
        ("photos", ["--size", "0"], "--size"),
        ("photos", ["--seed", "-1"], "--seed"),
        ("photos", ["--set", "epoch=3"], "--set epochs=3"),
        ("photos", ["--set", "lr=fast"], "--set lr"),
        ("photos", ["--set", "epochs=0"], "--set epochs"),
        ("mnist", ["--target", "kind"], "--target"),
        ("mnist", [], "--model"),
    ],
)
def test_what_will_not_do_is_told_by_the_name_of_its_option(home, invoke, data, options, told):
    done = train(invoke, home, data, *options, out="refused")
    assert done.exit_code == 1
    assert told in done.stderr.rpartition("error: ")[2]
    assert not (home / "runs" / "refused" / "run.json").exists()
    assert not (home / "runs" / "refused" / "members").exists()


def test_the_fields_of_a_recipe_are_listed_without_anything_else(invoke):
    done = invoke("train", "--set", "help")
    assert done.exit_code == 0, done.output
    assert "epochs=100" in done.output
    assert "select_by=accuracy" in done.output


def test_a_run_on_several_arrays_is_judged_in_python_alone(at_home, invoke, tmp_path):
    class Sum(torch.nn.Linear):
        def forward(self, one, other):
            return super().forward(one + other)

    x = torch.randn(40, 2)
    options = {"recipe": ge.Recipe(epochs=1), "progress": False, "device": "cpu", "run_dir": tmp_path / "run"}
    ge.fit(lambda: Sum(2, 2), ((x, x), torch.arange(40) % 2), size=1, method="deep", **options)
    for path in ("table.csv", "arrays.npz"):
        done = invoke("evaluate", tmp_path / "run", "--on", path, "--device", "cpu")
        assert done.exit_code == 1
        assert done.stderr.startswith(f"error: --on {path} ")


def test_a_forged_part_is_refused(at_home, tmp_path):
    from greedy_ensembles import storage

    for about in ('{"name": 1}', "[]", '{"name": "x", "classes": 3, "source": "", "note": ""}'):
        tensors, _ = storage.read_tensors(at_home / "runs" / "photos" / "held-out.safetensors")
        storage.write_tensors(tmp_path / "held-out.safetensors", tensors, {"about": about})
        with pytest.raises(storage.FolderError, match="held-out"):
            read_held_out(tmp_path)


def test_nothing_is_made_for_a_file_that_cannot_be_written(at_home, invoke, tmp_path):
    done = invoke("predict", at_home / "runs" / "photos", "other", "--out", tmp_path / "nope" / "x.csv")
    assert done.exit_code == 1
    assert "--out" in done.output
    assert not (tmp_path / "nope").exists()
