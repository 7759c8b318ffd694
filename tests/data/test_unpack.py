import subprocess
import sys
import tarfile
import zipfile

import pytest
from tests.data.conftest import make_tar, make_zip

import greedy_ensembles as ge
from greedy_ensembles.data.archives import file_names, own_folder, unpack


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_files_and_folders_come_out(tmp_path, make):
    archive = make(tmp_path / "a", {"set/train/x": b"one", "set/y": b"two"})
    assert unpack(archive, tmp_path / "data") == [tmp_path / "data" / "set"]
    assert (tmp_path / "data" / "set" / "train" / "x").read_bytes() == b"one"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["set"]


EVIL = ["../evil", "set/../../evil", "/evil", "..\\evil", "C:\\evil", "C:evil", "\\evil", "//server/share/evil", ".."]


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize("name", EVIL)
def test_names_that_lead_out_are_refused_before_anything_is_written(tmp_path, make, name):
    name = str(tmp_path / "evil") if name == "/evil" else name
    archive = make(tmp_path / "a", {"good": b"x", name: b"evil"})
    with pytest.raises(ValueError, match="leads out of the folder"):
        unpack(archive, tmp_path / "deep" / "data")
    assert list((tmp_path / "deep" / "data").iterdir()) == []
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
@pytest.mark.parametrize("target", ["../outside", "/etc", "good"])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind, target):
    archive = make_tar(tmp_path / "a", {"good": b"x", "link": (kind, target), "link/file": b"evil"})
    with pytest.raises(ValueError, match=r"link is a (link|device); only files and folders"):
        unpack(archive, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_links_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc")
    with pytest.raises(ValueError, match="link is a link"):
        unpack(tmp_path / "a", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_what_expands_beyond_the_limit_is_not_unpacked(tmp_path, make):
    files = {"x": bytes(10**6), "y": bytes(10**6)}
    archive, small = make(tmp_path / "a", files), tmp_path / "a.gz"
    make(small, files, "w:gz" if make is make_tar else zipfile.ZIP_DEFLATED)
    with ge.limits(expanded=1.5e6):
        with pytest.raises(ValueError, match=r"a\.gz cannot be unpacked.*ge\.limits\(expanded="):
            unpack(small, tmp_path / "data")
        with pytest.raises(ValueError, match=r"a\.gz is damaged.*ge\.limits\(expanded="):
            file_names(small)
        assert list((tmp_path / "data").iterdir()) == []
        assert len(unpack(archive, tmp_path / "data")) == 2  # it is that large itself


def test_what_a_killed_process_left_is_removed_and_what_another_uses_is_not(tmp_path):
    with own_folder(tmp_path, "a") as used:
        (used / "x").write_bytes(b"in use")
        left = tmp_path / ".a-left.part"
        (left / "content").mkdir(parents=True)
        (left / "lock").touch()
        code = "import sys, pathlib; from greedy_ensembles.data.archives import own_folder\n"
        code += "with own_folder(pathlib.Path(sys.argv[1]), 'a'): pass"
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert (used / "x").exists()
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path):
    archive = make_tar(tmp_path / "a", {"set/x": b"new", "other": b"new"})
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "data" / "set" / "x").write_bytes(b"old")
    with pytest.raises(FileExistsError, match="set is there already"):
        unpack(archive, tmp_path / "data")
    assert (tmp_path / "data" / "set" / "x").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["set"]


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_damaged_archives_leave_nothing(tmp_path, make):
    whole = make(tmp_path / "a", {"set/x": b"x" * 5000, "set/y": b"y" * 5000}).read_bytes()
    for content in (b"", b"nothing of the kind", whole[:3000]):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(ValueError, match="cannot be unpacked"):
            unpack(tmp_path / "a", tmp_path / "data")
        assert list((tmp_path / "data").iterdir()) == []
