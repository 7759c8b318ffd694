"""Folders of one's own: classes, parts, what cannot be read, splits, and the line that says it."""

import io
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

import greedy_ensembles as ge


def write(folder, name, size=(12, 9), shade=100, mode="RGB"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = {"RGB": (shade, 0, 0), "RGBA": (shade, 0, 0, 255), "L": shade}[mode]
    Image.new(mode, size, colour).save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number in range(4):
        write(folder, f"cat/{number} [a].png", (12 + number, 9), 40)
        write(folder, f"dog/deeper/{number}.png", (8, 8), 200, mode="L" if number else "RGBA")
    return folder


def test_a_class_is_the_first_folder_and_a_line_says_what_there_is(photos):
    parts = ge.data.read_parts(photos, size=8)
    assert list(parts) == ["train"]
    assert parts["train"].classes == ("cat", "dog")
    assert str(parts["train"]) == "photos: 8 images of 3 x 8 x 8, 2 classes (cat 4, dog 4)"
    assert parts["train"].images[:4, 0].tolist() == np.full((4, 8, 8), 40).tolist()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_class_that_may_not_be_read_is_not_left_out_in_silence(photos):
    write(photos, "emu/1.png")
    (photos / "emu").chmod(0)
    with pytest.raises(PermissionError, match="emu cannot be read: Permission denied"):
        ge.data.read_parts(photos, size=8)
    (photos / "emu").chmod(0o755)


def test_links_are_followed_and_broken_ones_are_named(photos, tmp_path):
    write(tmp_path, "elsewhere/1.png")
    (photos / "emu").symlink_to(tmp_path / "elsewhere")
    (photos / "cat" / "9.png").symlink_to(tmp_path / "gone.png")
    unreadable = []
    parts = ge.data.read_parts(photos, size=8, unreadable=unreadable)
    assert np.bincount(parts["train"].labels).tolist() == [4, 4, 1]
    assert parts["train"].classes == ("cat", "dog", "emu")
    assert len(unreadable) == 1
    assert "1 of 10" in parts["train"].note
    with pytest.raises((ValueError, OSError), match=r"9\.png"):
        ge.data.read_parts(photos, size=8)


@pytest.mark.parametrize("target", ["cat", "."])
def test_a_folder_that_is_there_twice_by_a_link_is_refused(photos, target):
    (photos / "again").symlink_to(photos / target)
    with pytest.raises(ValueError, match="are one folder, by a link"):
        ge.data.read_parts(photos, size=8)


@pytest.mark.parametrize("first", ["", "train/"])
def test_parts_share_their_classes_also_where_one_lacks_some(tmp_path, first):
    for name in ("cat/1.png", "dog/1.png", "dog/2.png"):
        write(tmp_path, first + name)
    write(tmp_path, "validation/dog/1.png")
    write(tmp_path, "test/dog/1.png")
    parts = ge.data.read_parts(tmp_path, size=8)
    assert [(part, images.labels.tolist()) for part, images in parts.items()] == [
        ("train", [0, 1, 1]),
        ("val", [1]),
        ("test", [1]),
    ]
    assert {images.classes for images in parts.values()} == {("cat", "dog")}


def test_an_archive_may_begin_with_a_folder(photos):
    file = photos.with_suffix(".zip")
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, f"backup/{path.relative_to(photos.parent)}")
    inside, beside = (ge.data.read_parts(path, size=8)["train"] for path in (file, photos))
    assert inside.classes == beside.classes
    assert np.array_equal(inside.images, beside.images)


def test_what_cannot_be_read_is_named_or_refused(photos):
    (photos / "cat" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"broken\.png"):
        ge.data.read_parts(photos, size=8)
    for read in (ge.data.read, lambda *given, **options: ge.data.read_parts(*given, **options)["train"]):
        unreadable = []
        images = read(photos, size=8, unreadable=unreadable)
        assert len(images) == len(images.labels) == 8
        assert len(unreadable) == 1
        assert "broken.png" in unreadable[0]
        assert "1 of 9 pictures could not be read (cat/broken.png)" in str(images)


def test_pictures_are_upright_in_training_as_in_prediction(tmp_path):
    pixels = np.zeros((8, 8), np.uint8)
    pixels[0] = 255  # a line that lies on the left once the picture is turned
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees, clockwise
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", exif=exif)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(buffer.getvalue())
    for images in (ge.data.read(tmp_path, channels=1), ge.data.read_parts(tmp_path, channels=1)["train"]):
        assert images.images[0, 0, :, -1].tolist() == [255] * 8
        assert images.images.sum() == 8 * 255


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["cat/1.png", "loose.png"], "loose"),
        (["cat/1.png", "test/1.png"], "test"),
        (["train/cat/1.png", "dog/1.png"], "dog"),
        (["test/cat/1.png", "val/cat/1.png"], "train"),
        (["cat/1.png", "test/owl/1.png"], "owl"),
        (["cat/1.txt"], "pictures"),
    ],
)
def test_folders_that_could_be_misread_are_refused(tmp_path, names, told):
    for name in names:
        if name.endswith(".png"):
            write(tmp_path, name)
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
    with pytest.raises(ValueError, match=told):
        ge.data.read_parts(tmp_path, size=8)


def test_parts_that_are_read_as_one_are_said_to_be(tmp_path):
    for name in ("train/cat/1.png", "val/cat/1.png"):
        write(tmp_path, name)
    assert "train and val together" in str(ge.data.read(tmp_path, size=8))


def test_a_split_keeps_the_shares_of_classes_and_every_image_once():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    images = np.arange(100, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    whole = ge.data.ImageSet(images, labels, "numbers", ("a", "b", "c"))
    kept, held = whole.split(0.2, seed=3)
    assert np.bincount(held.labels).tolist() == [12, 6, 2]
    assert sorted([*kept.images[:, 0, 0, 0], *held.images[:, 0, 0, 0]]) == list(range(100))
    for part in (kept, held):
        assert np.array_equal(part.labels, labels[part.images[:, 0, 0, 0]])
        assert part.classes == whole.classes
    assert np.array_equal(whole.split(0.2, seed=3)[1].images, held.images)
    assert not np.array_equal(whole.split(0.2, seed=4)[1].images, held.images)


@pytest.mark.parametrize(("share", "labels"), [(0.1, [0, 0, 0, 1]), (0.9, [0, 0, 1, 1]), (1.0, [0, 1]), (0, [0, 1])])
def test_shares_that_leave_a_class_out_are_refused(share, labels):
    tiny = ge.data.ImageSet(np.zeros((len(labels), 1, 2, 2), np.uint8), np.array(labels), "tiny")
    with pytest.raises(ValueError, match=r"share|few"):
        tiny.split(share)
