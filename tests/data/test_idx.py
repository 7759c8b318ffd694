import gzip

import numpy as np
import pytest

from greedy_ensembles.data.idx import read_idx, read_idx_pair


@pytest.mark.parametrize("end", ["", ".gz"])
def test_plain_and_gzipped_files_hold_the_same(tmp_path, random_bytes, write_idx, end):
    images = random_bytes(5, 7, 6)
    path = write_idx(tmp_path / "images", images)
    if end:
        (tmp_path / "images.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert (read_idx(tmp_path / f"images{end}") == images).all()


def test_a_pair_has_channels_and_labels(tmp_path, random_bytes, write_idx):
    paths = write_idx(tmp_path / "x", random_bytes(5, 7, 6)), write_idx(tmp_path / "y", random_bytes(5))
    images, labels = read_idx_pair(*paths)
    assert images.shape == (5, 1, 7, 6)
    assert labels.shape == (5,)
    with pytest.raises(ValueError, match="expected 3 and 1"):
        read_idx_pair(*reversed(paths))


def test_damage_is_named(tmp_path, random_bytes, write_idx):
    path = write_idx(tmp_path / "images", random_bytes(5, 7, 6))
    content = path.read_bytes()
    for damaged, message in [
        (content[:-1], "is damaged: 225 bytes where shape .5, 7, 6. needs 226"),
        (content + b"x", "is damaged"),
        (b"", "starts with nothing"),
        (b"\x1f\x8b\x08\x00", "not an idx file"),
        (b"\0\0\x08\xff", "is damaged"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"images.*{message}"):
            read_idx(path)
    write_idx(path, np.zeros(3, np.float32), kind=13)
    with pytest.raises(ValueError, match="only unsigned bytes"):
        read_idx(path)


def test_a_broken_gzip_is_named(tmp_path, random_bytes):
    whole = gzip.compress(random_bytes(1000).tobytes())
    for damaged in (whole[:500], whole[:-8] + b"12345678", b"no gzip"):
        (tmp_path / "x.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.gz is damaged"):
            read_idx(tmp_path / "x.gz")
