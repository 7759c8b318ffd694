"""Ensembles in folders, pictures and arrays as `predict` and `calibrate` read them, and thresholds found from them."""

import zipfile
from functools import partial

import numpy as np
import pytest
from PIL import Image
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark.stored_runs import held_out
from greedy_ensembles.cli.given import parse_shape, read_inputs
from greedy_ensembles.cli.predict import calibrate_folder, form_of, open_saved
from greedy_ensembles.data.image_set import fit_square
from greedy_ensembles.flags import ImageForm

GREY = ImageForm((1, 8, 8))
COLOUR = ImageForm((3, 8, 8))


@pytest.fixture
def pictures(tmp_path):
    """A folder with a colour picture that is wide, a grey one of the right size, and a broken one."""
    folder = tmp_path / "pictures"
    (folder / "inner").mkdir(parents=True)
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 256, (16, 24, 3), np.uint8)).save(folder / "wide.png")
    Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)).save(folder / "inner" / "small.png")
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("no picture either")
    return folder


def test_pictures_are_converted_and_the_conversion_is_said(pictures, capsys):
    found = read_inputs([pictures / "wide.png", pictures / "inner" / "small.png"], GREY)
    assert found.names == [str(pictures / "wide.png"), str(pictures / "inner" / "small.png")]
    assert found.values.shape == (2, 1, 8, 8)
    with Image.open(pictures / "wide.png") as picture:
        expected = np.asarray(fit_square(picture.convert("L"), 8))
    assert np.array_equal(found.values[0, 0], expected)
    assert capsys.readouterr().err.splitlines() == [
        "1 image was turned to grey",
        "1 image was cropped to the centre square",
        "1 image was resized to 8 x 8",
    ]
    assert not found.unreadable


def test_of_a_folder_the_broken_picture_is_named_and_the_others_are_read(pictures, capsys):
    found = read_inputs([pictures], COLOUR)
    assert found.names == [str(pictures / "inner" / "small.png"), str(pictures / "wide.png")]
    (broken,) = found.unreadable
    assert "broken.jpg is not a readable picture" in broken
    told = capsys.readouterr().err.splitlines()
    assert {broken, "1 image was turned from grey to colour"} <= set(told)


def test_an_archive_is_read_as_a_folder_is(pictures, tmp_path):
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        for name in ("wide.png", "inner/small.png"):
            archive.write(pictures / name, name)
    found = read_inputs([tmp_path / "pictures.zip"], GREY)
    same = read_inputs([pictures], GREY)
    order = [found.names.index(str(tmp_path / "pictures.zip" / name)) for name in ("inner/small.png", "wide.png")]
    assert np.array_equal(found.values[order], same.values)


def test_what_becomes_too_much_in_the_shape_that_is_known_is_refused(pictures, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((9, 8, 8), np.uint8))
    for path in (pictures, tmp_path / "a.npz"):
        with ge.limits(expanded=1e5), pytest.raises(ValueError, match=rf"{path}.*ge\.limits\(expanded="):
            read_inputs([path], ImageForm((3, 256, 256)))
        assert read_inputs([path], ImageForm((3, 256, 256))).values.shape[1:] == (3, 256, 256)


def test_arrays_of_images_take_the_shape_that_is_known(tmp_path, capsys):
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    found = read_inputs([tmp_path / "images.npy"], GREY)
    assert found.values.shape == (3, 1, 8, 8)
    assert found.names[2] == f"{tmp_path / 'images.npy'}[2]"
    assert capsys.readouterr().err == "3 images were turned to grey\n3 images were resized to 8 x 8\n"
    np.savez(tmp_path / "images.npz", x=images)
    (tmp_path / "images.npz").rename(tmp_path / "IMAGES.NPZ")  # as some cameras and systems spell names
    assert np.array_equal(read_inputs([tmp_path / "IMAGES.NPZ"], GREY).values, found.values)
    assert len(ge.data.read(tmp_path / "IMAGES.NPZ")) == 3


def test_where_no_shape_is_known_arrays_are_taken_as_they_are(tmp_path):
    table = np.random.default_rng(2).normal(size=(5, 2))
    np.save(tmp_path / "table.npy", table)
    assert np.array_equal(read_inputs([tmp_path / "table.npy"], ImageForm()).values, table)
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 4), np.uint8))
    assert read_inputs([tmp_path / "images.npy"], ImageForm()).values.shape == (2, 1, 4, 4)


def test_a_picture_of_unknown_shape_is_refused(pictures):
    with pytest.raises(ValueError, match=r"wide\.png is a picture, and it is not known .* --shape 3x32x32, .*--root"):
        read_inputs([pictures / "wide.png"], ImageForm())


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        (np.zeros((2, 8, 8), np.float32), GREY, "must be uint8"),
        (np.zeros((0, 8, 8), np.uint8), GREY, "no inputs"),
        (np.zeros(3), ImageForm(), r"shape \(n, ...\)"),
        (np.array([[np.nan, 1.0]]), ImageForm(), "infinite or NaN"),
        (np.array([["a", "b"]]), ImageForm(), "must hold numbers"),
        (np.array([[{}]], dtype=object), ImageForm(), "is not an array of numbers"),
    ],
)
def test_arrays_that_will_not_do_are_refused(tmp_path, content, form, message):
    np.save(tmp_path / "x.npy", content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        read_inputs([tmp_path / "x.npy"], form)


@pytest.mark.parametrize("form", [GREY, ImageForm()])
def test_nobody_is_told_to_unpickle_what_is_no_array(tmp_path, form):
    (tmp_path / "x.npy").write_bytes(b"neither an array nor an archive")
    with pytest.raises(ValueError, match=r"it was not written by numpy\.save") as refusal:
        read_inputs([tmp_path / "x.npy"], form)
    assert "pickle" not in str(refusal.value)


def test_pictures_are_turned_as_the_camera_was_held(tmp_path):
    """A phone stores what its sensor sees, and says in the file which side is up."""
    stored = Image.new("L", (8, 8))
    stored.paste(255, (0, 0, 8, 4))  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    stored.save(tmp_path / "turned.png", exif=exif)
    stored.save(tmp_path / "plain.png")
    turned, plain = (read_inputs([tmp_path / f"{name}.png"], GREY).values[0, 0] for name in ("turned", "plain"))
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))
    assert turned[:, -1].min() == 255
    assert turned[:, 0].max() == 0


def test_a_camera_whose_notes_are_damaged_is_named(tmp_path):
    """Its orientation is fine; a text stands where numbers should, which Pillow finds out as it writes them anew."""
    header = b"Exif\0\0MM\0*\0\0\0\x08\0\x02"  # a count of two entries: bits a sample, as text, and the orientation
    bits, orientation = b"\x01\x02\0\x02\0\0\0\x06\0\0\0&", b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
    exif = header + bits + orientation + b"\0\0\0\0hello\0"
    Image.new("RGB", (16, 8)).save(tmp_path / "photo.jpg", exif=exif)
    with pytest.raises(ValueError, match=r"photo\.jpg is not a readable picture"):
        read_inputs([tmp_path / "photo.jpg"], COLOUR)


@pytest.mark.parametrize(("kind", "suffix"), [("uint16", "png"), ("int32", "tif"), ("float32", "tif")])
def test_pictures_of_more_than_8_bits_are_not_turned_to_white(tmp_path, kind, suffix):
    path = tmp_path / f"deep.{suffix}"
    Image.fromarray(np.full((8, 8), 300).astype(kind)).save(path)
    with pytest.raises(ValueError, match=rf"nothing to predict: .*deep\.{suffix} has pixels of .* beyond 8 bits"):
        read_inputs([path], GREY)


def test_slips_of_the_hand_are_refused_before_anything_is_read(pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"wdie\.png does not exist"):
        read_inputs([pictures / "wide.png", pictures / "wdie.png"], GREY)
    with pytest.raises(ValueError, match="empty holds no pictures"):
        read_inputs([tmp_path / "empty"], GREY)
    with pytest.raises(ValueError, match=r"nothing to predict: .*broken\.jpg"):
        read_inputs([pictures / "broken.jpg"], GREY)
    with pytest.raises(ValueError, match=r"notes\.txt .*neither .*folder .*picture .*zip or tar"):
        read_inputs([pictures / "notes.txt"], GREY)
    for side in (4, 5):
        np.save(tmp_path / f"{side}.npy", np.zeros((1, side)))
    with pytest.raises(ValueError, match="one shape, got 4 and 5"):
        read_inputs([tmp_path / "4.npy", tmp_path / "5.npy"], ImageForm())


def test_shapes_as_people_write_them():
    assert parse_shape(" 1x28x28") == (1, 28, 28)
    for text in ("32", "3,32,32", "3x32", "-3x32x32", "3x0x0", "3x32x64", "4x32x32"):
        with pytest.raises(ValueError, match="--shape must be 1 or 3 channels x height x width of a square"):
            parse_shape(text)


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@pytest.fixture
def train(tmp_path, write_mnist, quick):
    write_mnist(tmp_path / "data" / "mnist", "train", 200, 0)
    images = ge.data.load("mnist", "train", tmp_path / "data")

    def run(data=images, size=2, validation=0.2, make_model=linear):
        options = {**quick, "recipe": ge.Recipe(epochs=1, batch_size=32)}
        ge.fit(make_model, data, size=size, method="deep", validation=validation, run_dir=tmp_path / "run", **options)
        return open_saved(tmp_path / "run", make_model)

    return run


def test_the_threshold_is_that_of_the_images_that_the_run_held_out(train, tmp_path):
    saved = train()
    found = calibrate_folder(saved, 0.1, root=tmp_path / "data")
    every = ge.data.load("mnist", "train", tmp_path / "data")
    probs = saved.ensemble.predict_proba(held_out(saved.facts, every).images, batch_size=64)
    scores = ge.metrics.mutual_information(probs.double()).numpy()
    assert (found.inputs, found.source) == (40, "mnist, held out")
    assert (scores >= found.threshold).sum() == 40 - 37  # ceil(0.9 * 41) of them are below
    assert max(score for score in scores if score < found.threshold) == np.sort(scores)[36]
    assert open_saved(tmp_path / "run", linear).ensemble.calibration == found
    assert found.temperature is not None  # images that were held out have labels
    assert found.form == ImageForm((1, 28, 28), tuple("0123456789"))


def test_the_form_comes_from_the_run_or_else_from_the_data_set_if_that_is_there(train, tmp_path):
    saved = train()
    assert form_of(saved, tmp_path / "data") == ImageForm((1, 28, 28), tuple("0123456789"))
    assert form_of(saved, tmp_path / "elsewhere") == ImageForm((1, 28, 28), tuple("0123456789"))  # as run.json has it
    written = ge.storage.read_json(tmp_path / "run" / "run.json")
    del written["inputs"], written["data"]["classes"]  # as in runs of older versions
    ge.storage.write_json(tmp_path / "run" / "run.json", written)
    assert form_of(open_saved(tmp_path / "run", linear), tmp_path / "elsewhere") == ImageForm((1, 28, 28))
    del written["data"]["shape"]  # of still older ones
    ge.storage.write_json(tmp_path / "run" / "run.json", written)
    assert form_of(open_saved(tmp_path / "run", linear), tmp_path / "data").shape == (1, 28, 28)
    assert form_of(open_saved(tmp_path / "run", linear), tmp_path / "elsewhere") == ImageForm()


def test_the_form_is_that_of_the_run_where_images_were_resized(train, quick, tmp_path):
    train()  # which writes the data
    small = ge.data.load("mnist", "train", tmp_path / "data", size=8)
    make_model = partial(ge.models.PreResNet, 8, channels=1)  # takes any size, and would not complain
    options = {**quick, "recipe": ge.Recipe(epochs=1), "validation": 0, "run_dir": tmp_path / "small"}
    ge.fit(make_model, small, size=1, strength=1.0, **options)
    saved = open_saved(tmp_path / "small")
    assert form_of(saved, tmp_path / "data") == ImageForm((1, 8, 8), tuple("0123456789"))
    assert form_of(saved, tmp_path / "elsewhere") == ImageForm((1, 8, 8), tuple("0123456789"))


def test_runs_on_arrays_and_saved_ensembles_take_inputs_of_your_own(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=2, method="deep", run_dir=tmp_path / "run", **quick).save(tmp_path / "saved")
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    of_run, of_save = open_saved(tmp_path / "run", make_model), open_saved(tmp_path / "saved", make_model)
    for saved in (of_run, of_save):
        with pytest.raises(ValueError, match=r"--on"):
            calibrate_folder(saved)
        calibrate_folder(saved, 0.1, values)
    first, second = (open_saved(tmp_path / name, make_model).ensemble.calibration for name in ("run", "saved"))
    assert first is not None
    assert first == second  # the same weights, wherever they lie
    assert first.form == ImageForm()


def test_images_of_your_own_tell_the_form(train, tmp_path):
    saved = train()
    values = np.random.default_rng(0).integers(0, 256, (30, 1, 28, 28)).astype(np.uint8)
    found = calibrate_folder(saved, 0.1, values, root=tmp_path / "nowhere")
    assert found.form == ImageForm((1, 28, 28), tuple("0123456789"))


def test_a_run_that_held_nothing_out_is_refused(train, tmp_path):
    with pytest.raises(ValueError, match=r"keeps nothing that it held out; .* --on"):
        calibrate_folder(train(validation=0), root=tmp_path / "data")


def test_a_data_set_of_your_own_has_no_name_to_be_found_by(train, tmp_path):
    images = ge.data.load("mnist", "train", tmp_path / "data").replace(name="mine")
    saved = train(images)
    assert form_of(saved, tmp_path / "data") == ImageForm((1, 28, 28), tuple("0123456789"))
    with pytest.raises(ValueError, match="--on"):
        calibrate_folder(saved, root=tmp_path / "data")
