import gzip
import hashlib
import os
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import make_tar, store

import greedy_ensembles as ge
from greedy_ensembles.data import picture_sets, registry
from greedy_ensembles.data.image_set import squeeze
from greedy_ensembles.data.picture_sets import Look


def test_omniglot_is_white_on_black_and_small(tmp_path, encoded):
    page = np.full((105, 105), 255, np.uint8)
    page[40:60, 10:90] = 0  # a black stroke
    files = {
        f"images_evaluation/{alphabet}/character{i:02}/{i:04}_01.png": encoded(page)
        for alphabet in ("Tengwar", "Atlantean")
        for i in (1, 2)
    }
    images, labels, classes, note = picture_sets.read_folder(
        store("zip", tmp_path / "o", files), Look(28, channels=1, invert=True), depth=2
    )
    assert images.shape == (4, 1, 28, 28)
    assert images[0, 0, 0, 0] == 0
    assert images[0, 0, 13, 13] == 255
    assert labels.tolist() == [0, 1, 2, 3]
    assert classes[0] == "Atlantean/character01"
    assert note == ""


def test_pictures_are_resized_whole_where_asked(tmp_path, encoded, random_bytes):
    pixels = random_bytes(30, 50, 3)
    path = store("zip", tmp_path / "x", {"a/1.png": encoded(pixels)})
    cropped, whole = (ge.data.read(path, 8, resize=how).images[0] for how in ("crop", "whole"))
    assert np.array_equal(whole, squeeze(pixels, 8).transpose(2, 0, 1))
    assert not np.array_equal(whole, cropped)
    assert np.array_equal(registry.read_places(path, Look(8, resize="whole"))[0][0], whole)


def test_tiny_imagenet_follows_its_annotations(tmp_path, encoded):
    shade = {"val_0.JPEG": 10, "val_1.JPEG": 90, "val_10.JPEG": 170, "val_2.JPEG": 250}
    files = {f"t/val/images/{name}": encoded(np.full((64, 64, 3), v, np.uint8), "JPEG") for name, v in shade.items()}
    files["t/train/n1/images/n1_0.JPEG"] = b"never looked at"
    rows = [("val_0.JPEG", "n7"), ("val_1.JPEG", "n3"), ("val_2.JPEG", "n7"), ("val_10.JPEG", "n5")]
    files["t/val/val_annotations.txt"] = "".join(f"{name}\t{word}\t0\t1\t2\t3\n" for name, word in rows).encode()
    images, labels, classes, note = registry.read_tiny_imagenet(store("zip", tmp_path / "t", files), Look(32))
    assert images.shape == (4, 3, 32, 32)
    assert images[:, 0, 5, 5].tolist() == pytest.approx([10, 90, 250, 170], abs=2)
    assert (labels.tolist(), classes) == ([2, 0, 2, 1], ("n3", "n5", "n7"))
    assert note == "not the recorded choice of files"
    del files["t/val/images/val_2.JPEG"]
    with pytest.raises(ValueError, match=r"lacks 1 of 4 .*val_2\.JPEG"):
        registry.read_tiny_imagenet(store("zip", tmp_path / "t", files), Look(32))
    with pytest.raises(ValueError, match=r"0 files val_annotations\.txt"):
        registry.read_tiny_imagenet(store("zip", tmp_path / "t", {"a.png": b""}), Look(32))


def test_places_takes_the_first_in_alphabetical_order(tmp_path, encoded, monkeypatch):
    monkeypatch.setattr(registry, "PLACES_COUNT", 2)
    for number in (3, 1, 2):
        name = f"Places365_test_{number:08}.jpg"
        (tmp_path / name).write_bytes(encoded(np.full((256, 256, 3), 50 * number, np.uint8), "JPEG"))
    images, labels, _, note = registry.read_places(tmp_path, Look(32))
    assert images[:, 0, 0, 0].tolist() == pytest.approx([50, 100], abs=2)
    assert labels is None
    assert note
    digest = hashlib.sha256(b"Places365_test_00000001.jpg\nPlaces365_test_00000002.jpg\n").hexdigest()
    monkeypatch.setattr(registry, "PLACES_NAMES", digest)
    assert registry.read_places(tmp_path, Look(32))[3] == ""


def test_the_recorded_hashes_are_those_of_the_published_names():
    places = [f"any/folder/Places365_test_{number:08}.jpg" for number in range(1, 10_001)]
    assert registry.names_digest(places) == registry.PLACES_NAMES
    assert registry.names_digest(places[1:]) != registry.PLACES_NAMES
    tiny = [f"val_{number}.JPEG" for number in range(10_000)]
    assert registry.names_digest(tiny) == registry.TINY_IMAGENET_NAMES


def test_textures_are_labelled_by_their_folder(tmp_path, encoded, random_bytes):
    for word in ("zigzagged", "banded"):
        (tmp_path / word).mkdir()
        (tmp_path / word / f"{word}_0001.jpg").write_bytes(encoded(random_bytes(300, 400, 3), "JPEG"))
    images, labels, classes, _ = picture_sets.read_folder(tmp_path, Look(32))
    assert images.shape == (2, 3, 32, 32)
    assert (labels.tolist(), classes) == ([0, 1], ("banded", "zigzagged"))


@pytest.fixture
def lsun(tmp_path, encoded):
    lmdb = pytest.importorskip("lmdb", reason="lmdb is an extra: greedy-ensembles[lsun]")
    with lmdb.open(str(tmp_path)) as database, database.begin(write=True) as transaction:
        for key, shade in ((b"b", 200), (b"a", 100)):
            transaction.put(key, encoded(np.full((300, 256, 3), shade, np.uint8), "WEBP"))
    return tmp_path


def test_lsun_is_read_in_the_order_of_its_keys(lsun):
    images, labels, _, _ = registry.read_lsun(lsun, Look(32))
    assert images.shape == (2, 3, 32, 32)
    assert images[:, 0, 0, 0].tolist() == pytest.approx([100, 200], abs=3)
    assert labels is None


def test_a_damaged_lsun_is_refused_by_name(lsun):
    """Whatever becomes of the library's reader, an error or a signal."""
    whole = (lsun / "data.mdb").read_bytes()
    for content in (b"nothing" * 100, whole[:5000], b""):
        (lsun / "data.mdb").write_bytes(content)
        with pytest.raises(ValueError, match=str(lsun)):
            registry.read_lsun(lsun, Look(32))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_an_lsun_that_asks_for_more_memory_than_it_has_bytes_is_refused(lsun):
    """The library maps as many pages as the file says that it has: here, a terabyte."""
    content = bytearray((lsun / "data.mdb").read_bytes())
    for page in (0, 4096):  # its two headers, one of which counts
        content[page + 136 : page + 144] = (1 << 28).to_bytes(8, "little")
    (lsun / "data.mdb").write_bytes(content)
    with pytest.raises(ValueError, match=rf"{lsun} .*allocate memory"):
        registry.read_lsun(lsun, Look(32))


def test_an_lsun_that_takes_forever_is_given_up(lsun):
    (lsun / "data.mdb").unlink()
    os.mkfifo(lsun / "data.mdb")  # whoever opens it waits for someone to write
    with ge.limits(seconds=1), pytest.raises(ValueError, match=rf"{lsun} .*1 seconds"):
        registry.read_lsun(lsun, Look(32))


def test_lsun_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ValueError, match=r"pip install 'greedy-ensembles\[lsun\]'"):
        registry.read_lsun(tmp_path, Look(32))


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tgz"])
def test_the_order_is_that_asked_for_wherever_the_files_lie(tmp_path, random_bytes, encoded, kind):
    arrays = {f"d/{name}.png": random_bytes(6, 6, 3) for name in "cab"}
    where = store(kind, tmp_path / "s", {name: encoded(array) for name, array in arrays.items()})
    assert sorted(picture_sets.file_names(where)) == ["d/a.png", "d/b.png", "d/c.png"]
    wanted = ["d/b.png", "d/c.png"]
    stacked = picture_sets.stack(where, wanted, Look())[0]
    assert (stacked == np.stack([arrays[name].transpose(2, 0, 1) for name in wanted])).all()


def test_links_in_a_tar_are_not_pictures(tmp_path, encoded, random_bytes):
    (tmp_path / "secret.png").write_bytes(encoded(random_bytes(4, 4)))
    make_tar(tmp_path / "s.tar", {"a.png": (tarfile.SYMTYPE, str(tmp_path / "secret.png"))})
    assert picture_sets.file_names(tmp_path / "s.tar") == []
    with pytest.raises(ValueError, match="holds 0 of 1"):
        picture_sets.stack(tmp_path / "s.tar", ["a.png"], Look(channels=1))


def test_sizes_must_agree_or_be_given(tmp_path, encoded, random_bytes):
    where = store("folder", tmp_path, {"a.png": encoded(random_bytes(6, 6)), "b.png": encoded(random_bytes(6, 7))})
    with pytest.raises(ValueError, match="give the size"):
        picture_sets.stack(where, ["a.png", "b.png"], Look(channels=1))
    assert picture_sets.stack(where, ["a.png", "b.png"], Look(5, 1))[0].shape == (2, 1, 5, 5)


def test_what_is_no_picture_or_archive_is_named(tmp_path, encoded, random_bytes):
    half = encoded(random_bytes(60, 60, 3))[:2000]
    where = store("zip", tmp_path / "s", {"broken.png": half, "text.jpg": b"hello"})
    for name in ("broken.png", "text.jpg"):
        with pytest.raises(ValueError, match=f"{name} is not a readable picture"):
            picture_sets.stack(where, [name], Look(8))
    for content in (b"", b"hello", where.read_bytes()[:-30]):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.tar is neither"):
            picture_sets.file_names(tmp_path / "x.tar")
    whole = store("tgz", tmp_path / "t", {"a.png": random_bytes(50_000).tobytes()}).read_bytes()
    (tmp_path / "t.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.tgz is damaged"):
        list(picture_sets.contents(tmp_path / "t.tgz", ["a.png"]))


def test_a_truncated_archive_is_named_also_when_it_is_only_listed(tmp_path, random_bytes):
    whole = store("tgz", tmp_path / "t", {f"{i}.png": random_bytes(5000).tobytes() for i in range(9)}).read_bytes()
    (tmp_path / "t.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.tgz is damaged"):
        picture_sets.picture_names(tmp_path / "t.tgz")


def test_no_other_program_is_asked_what_a_picture_is(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    trace = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho >{trace}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(ValueError, match=r"a\.png .*readable picture: .* no format"):
        picture_sets.decode(postscript, "a.png", Look(8))
    assert not trace.exists()


@pytest.mark.parametrize("kind", ["folder", "zip", "tgz"])
def test_pictures_have_a_limit_of_bytes_and_of_pixels(tmp_path, encoded, random_bytes, kind, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow's own is out of the way of one that is raised
    content = encoded(random_bytes(60, 60))
    where = store(kind, tmp_path / "s", {"a.png": content})
    for limits in ({"pixels": 1799}, {"picture": len(content) - 1}, {"pixels": 3599}):
        with ge.limits(**limits), pytest.raises(ValueError, match=rf"a\.png.*ge\.limits\({next(iter(limits))}="):
            ge.data.read(where)
    with ge.limits(picture=len(content), pixels=3600):
        assert len(ge.data.read(where)) == 1


@pytest.mark.parametrize("kind", ["folder", "zip", "tgz"])
def test_many_pictures_have_a_limit_of_what_they_become(tmp_path, encoded, random_bytes, kind):
    """Photographs become 32 times what they are on disk at most; drawings may be far smaller there."""
    drawings, photographs = (
        store(kind, tmp_path / name, {f"{i}.png": encoded(content) for i in range(9)})
        for name, content in (("drawings", np.zeros((200, 200), np.uint8)), ("photographs", random_bytes(200, 200)))
    )
    with ge.limits(expanded=1e6):
        with pytest.raises(ValueError, match=r"drawings.*ge\.limits\(expanded=1080000"):
            ge.data.read(drawings)
        assert ge.data.read(drawings, size=32).images.shape == (9, 3, 32, 32)
        assert ge.data.read(photographs).images.shape == (9, 3, 200, 200)


def tar_header(name, size, kind=b"0"):
    header = tarfile.TarInfo(name)
    header.size, header.type = max(size, 0), kind
    content = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        content[124:136] = b"\xff" * 8 + (size & 0xFFFFFFFF).to_bytes(4, "big")
        content[148:156] = b" " * 8
        content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


def test_headers_of_archives_that_lie_are_refused(tmp_path):
    path = tmp_path / "t.tar"
    zeros = gzip.compress(tar_header("./@LongLink", 10**6, b"L") + bytes(10**6) + tar_header("a.png", 0))
    backwards = tar_header("a.png", -1024) + bytes(1024)
    for content, limits in ((zeros, {"picture": 10**5}), (zeros, {"expanded": 10**5}), (backwards, {})):
        path.write_bytes(content)
        with ge.limits(**limits), pytest.raises(ValueError, match=r"t\.tar"):
            picture_sets.picture_names(path)
    path.write_bytes(b"".join(tar_header(f"{i}.png", 0) for i in range(9)))
    with ge.limits(entries=8), pytest.raises(ValueError, match=r"t\.tar.*ge\.limits\(entries=9"):
        picture_sets.picture_names(path)


def test_which_names_are_pictures():
    assert picture_sets.is_picture("d/a.JPEG")
    assert not any(map(picture_sets.is_picture, ["a.txt", ".a.png", "__MACOSX/a.png", "d/.x/a.png", "png"]))


def test_labels_by_folder():
    for names, depth, expected, words in [
        (["s/b/1.png", "s/a/2.png"], 1, [1, 0], ("a", "b")),
        (["s/b/1.png", "t/b/2.png"], 2, [0, 1], ("s/b", "t/b")),
    ]:
        labels, classes = picture_sets.by_folder(names, depth)
        assert (labels.tolist(), classes) == (expected, words)
    assert picture_sets.by_folder(["1.png", "a/2.png"]) == (None, None)
