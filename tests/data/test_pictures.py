import io
import tarfile
import zipfile

import numpy as np
import pytest

from greedy_ensembles.data import pictures


def store(kind, path, files):
    """Write files as a folder, a zip, or a tar, plain or compressed; return where."""
    if kind == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        return path
    path = path.with_suffix(f".{kind}")
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz" if kind == "tgz" else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tgz"])
def test_the_order_is_that_asked_for_wherever_the_files_lie(tmp_path, random_bytes, encoded, kind):
    arrays = {f"d/{name}.png": random_bytes(6, 6, 3) for name in "cab"}
    where = store(kind, tmp_path / "s", {name: encoded(array) for name, array in arrays.items()})
    assert sorted(pictures.names(where)) == ["d/a.png", "d/b.png", "d/c.png"]
    wanted = ["d/b.png", "d/c.png"]
    stacked = pictures.stack(where, wanted, None, 3)
    assert (stacked == np.stack([arrays[name].transpose(2, 0, 1) for name in wanted])).all()


def test_links_in_a_tar_are_not_pictures(tmp_path, encoded, random_bytes):
    (tmp_path / "secret.png").write_bytes(encoded(random_bytes(4, 4)))
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        link = tarfile.TarInfo("a.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.png")
        archive.addfile(link)
    assert pictures.names(tmp_path / "s.tar") == []
    with pytest.raises(ValueError, match="holds 0 of 1"):
        pictures.stack(tmp_path / "s.tar", ["a.png"], None, 1)


def test_sizes_must_agree_or_be_given(tmp_path, encoded, random_bytes):
    where = store("folder", tmp_path, {"a.png": encoded(random_bytes(6, 6)), "b.png": encoded(random_bytes(6, 7))})
    with pytest.raises(ValueError, match="give the size"):
        pictures.stack(where, ["a.png", "b.png"], None, 1)
    assert pictures.stack(where, ["a.png", "b.png"], 5, 1).shape == (2, 1, 5, 5)


def test_what_is_no_picture_or_archive_is_named(tmp_path, encoded, random_bytes):
    half = encoded(random_bytes(60, 60, 3))[:2000]
    where = store("zip", tmp_path / "s", {"broken.png": half, "text.jpg": b"hello"})
    for name in ("broken.png", "text.jpg"):
        with pytest.raises(ValueError, match=f"{name} is not a readable picture"):
            pictures.stack(where, [name], 8, 3)
    for content in (b"", b"hello", where.read_bytes()[:-30]):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.tar is neither"):
            pictures.names(tmp_path / "x.tar")
    whole = store("tgz", tmp_path / "t", {"a.png": random_bytes(50_000).tobytes()}).read_bytes()
    (tmp_path / "t.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.tgz is damaged"):
        list(pictures.contents(tmp_path / "t.tgz", ["a.png"]))


def test_which_names_are_pictures():
    assert pictures.is_picture("d/a.JPEG")
    assert not any(map(pictures.is_picture, ["a.txt", ".a.png", "__MACOSX/a.png", "d/.x/a.png", "png"]))


def test_labels_by_folder():
    assert pictures.by_folder(["s/b/1.png", "s/a/2.png"]) == ([1, 0], ("a", "b"))
    assert pictures.by_folder(["s/b/1.png", "t/b/2.png"], depth=2) == ([0, 1], ("s/b", "t/b"))
    assert pictures.by_folder(["1.png", "a/2.png"]) == (None, None)
