import zipfile

import numpy as np
import pytest
from PIL import Image

from greedy_ensembles.data.image_set import fit_square
from greedy_ensembles.screening import Form, read_inputs
from greedy_ensembles.screening.form import parse_shape
from greedy_ensembles.screening.inputs import ShapeUnknownError

GREY = Form((1, 8, 8))
COLOUR = Form((3, 8, 8))


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


def test_pictures_are_converted_and_the_conversion_is_said(pictures):
    found = read_inputs([pictures / "wide.png", pictures / "inner" / "small.png"], GREY)
    assert found.names == (str(pictures / "wide.png"), str(pictures / "inner" / "small.png"))
    assert found.values.shape == (2, 1, 8, 8)
    with Image.open(pictures / "wide.png") as picture:
        expected = np.asarray(fit_square(picture.convert("L"), 8))
    assert np.array_equal(found.values[0, 0], expected)
    assert found.conversions == (
        "1 image was turned to grey",
        "1 image was cropped to the centre square",
        "1 image was resized to 8 x 8",
    )
    assert not found.unreadable


def test_of_a_folder_the_broken_picture_is_named_and_the_others_are_read(pictures):
    found = read_inputs([pictures], COLOUR)
    assert found.names == (str(pictures / "inner" / "small.png"), str(pictures / "wide.png"))
    assert "1 image was turned from grey to colour" in found.conversions
    (broken,) = found.unreadable
    assert "broken.jpg is not a readable picture" in broken


def test_an_archive_is_read_as_a_folder_is(pictures, tmp_path):
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        for name in ("wide.png", "inner/small.png"):
            archive.write(pictures / name, name)
    found = read_inputs([tmp_path / "pictures.zip"], GREY)
    same = read_inputs([pictures], GREY)
    order = [found.names.index(str(tmp_path / "pictures.zip" / name)) for name in ("inner/small.png", "wide.png")]
    assert np.array_equal(found.values[order], same.values)


def test_arrays_of_images_take_the_shape_that_is_known(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    found = read_inputs([tmp_path / "images.npy"], GREY)
    assert found.values.shape == (3, 1, 8, 8)
    assert found.names[2] == f"{tmp_path / 'images.npy'}[2]"
    assert found.conversions == ("3 images were turned to grey", "3 images were resized to 8 x 8")
    np.savez(tmp_path / "images.npz", x=images)
    assert np.array_equal(read_inputs([tmp_path / "images.npz"], GREY).values, found.values)


def test_where_no_shape_is_known_arrays_are_taken_as_they_are(tmp_path):
    table = np.random.default_rng(2).normal(size=(5, 2))
    np.save(tmp_path / "table.npy", table)
    assert np.array_equal(read_inputs([tmp_path / "table.npy"], Form()).values, table)
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 4), np.uint8))
    assert read_inputs([tmp_path / "images.npy"], Form()).values.shape == (2, 1, 4, 4)


def test_a_picture_of_unknown_shape_is_refused(pictures):
    with pytest.raises(ShapeUnknownError, match=r"wide\.png"):
        read_inputs([pictures / "wide.png"], Form())


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        (np.zeros((2, 8, 8), np.float32), GREY, "must be uint8"),
        (np.zeros((0, 8, 8), np.uint8), GREY, "no inputs"),
        (np.zeros(3), Form(), r"shape \(n, ...\)"),
        (np.array([[np.nan, 1.0]]), Form(), "infinite or NaN"),
        (np.array([["a", "b"]]), Form(), "must hold numbers"),
        (np.array([[{}]], dtype=object), Form(), "is not an array of numbers"),
    ],
)
def test_arrays_that_will_not_do_are_refused(tmp_path, content, form, message):
    np.save(tmp_path / "x.npy", content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        read_inputs([tmp_path / "x.npy"], form)


@pytest.mark.parametrize("form", [GREY, Form()])
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
    with pytest.raises(ValueError, match="neither a folder nor a picture nor a readable zip or tar"):
        read_inputs([pictures / "notes.txt"], GREY)
    for side in (4, 5):
        np.save(tmp_path / f"{side}.npy", np.zeros((1, side)))
    with pytest.raises(ValueError, match="one shape, got 4 and 5"):
        read_inputs([tmp_path / "4.npy", tmp_path / "5.npy"], Form())


def test_shapes_as_people_write_them():
    assert parse_shape(" 1x28x28") == (1, 28, 28)
    for text in ("32", "3,32,32", "3x32", "-3x32x32"):
        with pytest.raises(ValueError, match="--shape is channels x height x width"):
            parse_shape(text)


def test_forms_that_no_picture_could_be_given_are_refused():
    cases = {(2, 8, 8): "channels", (3, 8, 4): "square", (3, 0, 0): "1 to", (1, 9999, 9999): "1 to"}
    for shape, message in cases.items():
        with pytest.raises(ValueError, match=message):
            Form(shape)
    assert Form.of_images(np.zeros((2, 3, 8, 4), np.uint8)) == Form(None)
    assert Form.of_images(np.zeros((2, 3, 8, 8), np.uint8), ("a", "b")) == Form((3, 8, 8), ("a", "b"))
