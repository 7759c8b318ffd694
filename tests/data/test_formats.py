import gzip
import zipfile

import numpy as np
import pytest
from scipy.io import loadmat, savemat

import greedy_ensembles as ge
from greedy_ensembles.data.formats import read_arrays, read_idx, read_idx_pair, read_svhn


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


def test_a_damaged_idx_file_is_named(tmp_path, random_bytes, write_idx):
    path = write_idx(tmp_path / "images", random_bytes(5, 7, 6))
    content = path.read_bytes()
    for damaged, message in [
        (content[:-1], "is damaged: 209 bytes where shape .5, 7, 6. needs 210"),
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


def test_ten_means_the_digit_zero(tmp_path, random_bytes):
    pixels = random_bytes(32, 32, 3, 4)
    savemat(tmp_path / "t.mat", {"X": pixels, "y": np.array([[10], [1], [9], [10]], np.uint8)})
    images, labels = read_svhn(tmp_path / "t.mat")
    assert labels.tolist() == [0, 1, 9, 0]
    assert images.shape == (4, 3, 32, 32)
    assert images[2, 1, 5, 7] == pixels[5, 7, 1, 2]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float64, np.int32])
def test_mat_files_are_read_as_scipy_reads_them(tmp_path, random_bytes, compressed, kind):
    path, labels = tmp_path / "t.mat", (1 + np.arange(7) % 10).astype(kind)[:, None]
    others = {"text": "hello", "cells": np.array([{}, 1], object), "i": 3 + 4j, "a_long_name": np.zeros((2, 2))}
    savemat(path, {**others, "X": random_bytes(32, 32, 3, 7), "y": labels}, do_compression=compressed)
    images, found = read_svhn(path)
    expected = loadmat(path)
    assert np.array_equal(images, expected["X"].transpose(3, 2, 0, 1))
    assert np.array_equal(found, expected["y"].ravel() % 10)


def bombs(folder):
    """Files of a few hundred bytes that become a million."""
    zeros = np.zeros((1, 1000, 1000), np.uint8)
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in zeros.shape)
    (folder / "x.gz").write_bytes(gzip.compress(header + zeros.tobytes()))
    np.savez_compressed(folder / "x.npz", x=zeros)
    savemat(folder / "x.mat", {"X": zeros, "y": [[1]]}, do_compression=True)
    return [(read_idx, folder / "x.gz"), (read_arrays, folder / "x.npz"), (read_svhn, folder / "x.mat")]


def test_what_expands_beyond_the_limit_is_refused_unless_the_caller_allows_it(tmp_path, monkeypatch):
    for read, path in bombs(tmp_path):
        with ge.limits(expanded=900_000), pytest.raises(ValueError, match=rf"{path.name}.*ge\.limits\(expanded="):
            read(path)
    (read_gz, gz), (read_npz, npz), _ = bombs(tmp_path)
    monkeypatch.setenv("GREEDY_ENSEMBLES_LIMITS", "expanded=9e5")
    for read, path in ((read_gz, gz), (read_npz, npz)):
        with pytest.raises(ValueError, match="GREEDY_ENSEMBLES_LIMITS=expanded="):
            read(path)
        with ge.limits(expanded=2e6):
            read(path)
    np.savez(npz, x=np.zeros((1, 1000, 1000), np.uint8))  # not compressed: a file may become what it is
    assert read_npz(npz)[0].shape == (1, 1, 1000, 1000)


def test_small_npz_files_that_become_much_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + (10**6).to_bytes(4, "little") + b" " * 10**6)
    with pytest.raises(ValueError, match=r"a\.npz.*header, expected 1000000 bytes"):
        read_arrays(path)
    np.savez_compressed(path, x=np.zeros((10**4, 1, 1), np.uint8))
    with ge.limits(entries=5000), pytest.raises(ValueError, match=r"a\.npz.*ge\.limits\(entries=10000"):
        read_arrays(path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000, 9, 9)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 9, 9)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "(" * 3000,
        "{'descr': 3, 'fortran_order': False, 'shape': 'x'}",
        "{[]: 3}",
        "\0",
    ],
)
def test_headers_of_arrays_that_lie_are_named(tmp_path, header):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(100))
    with pytest.raises(ValueError, match=r"a\.npy is not a file of uint8 images"):
        read_arrays(path)


def test_a_damaged_mat_file_is_named(tmp_path, random_bytes):
    path = tmp_path / "t.mat"
    for content in (b"", b"MATLAB 5.0 MAT-file" + bytes(200), random_bytes(5000).tobytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"t\.mat"):
            read_svhn(path)
    savemat(path, {"X": random_bytes(32, 32, 3, 2)})
    with pytest.raises(ValueError, match=r"t\.mat.*y"):
        read_svhn(path)
    savemat(path, {"X": random_bytes(32, 32, 3, 2), "y": np.array([[1], [11]], np.uint8)})
    with pytest.raises(ValueError, match="labels 1 to 11"):
        read_svhn(path)
    savemat(path, {"X": random_bytes(32, 32, 3, 2), "y": np.array([[1]], np.uint8)})
    with pytest.raises(ValueError, match="1 labels"):
        read_svhn(path)
    with pytest.raises(FileNotFoundError):
        read_svhn(tmp_path / "none.mat")


@pytest.mark.parametrize("shape", [(2, 8, 9), (2, 8, 9, 1), (2, 1, 8, 9)])
def test_grey_in_every_layout(tmp_path, random_bytes, shape):
    images = random_bytes(*shape)
    np.save(tmp_path / "a.npy", images)
    read, labels = read_arrays(tmp_path / "a.npy")
    assert (read == images.reshape(2, 1, 8, 9)).all()
    assert labels is None


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("arr_0", "arr_1"), ("X", "Y")])
def test_npz_by_names(tmp_path, random_bytes, names):
    images = random_bytes(2, 8, 9, 3)
    np.savez_compressed(tmp_path / "a.npz", **dict(zip(names, (images, np.array([4, 5])), strict=True)))
    read, labels = read_arrays(tmp_path / "a.npz")
    assert (read == images.transpose(0, 3, 1, 2)).all()
    assert labels.tolist() == [4, 5]


def test_files_that_will_not_do_are_named(tmp_path, random_bytes):
    path = tmp_path / "a.npz"
    for arrays, message in [
        ({"x": np.zeros((2, 4, 4))}, "must be uint8"),
        ({"x": np.zeros((2, 5, 4, 4), np.uint8)}, "1 or 3 channels"),
        ({"z": np.zeros((2, 4, 4), np.uint8)}, "it holds z; images are called"),
        ({"x": np.array([{}], object)}, r"a\.npz.*must hold numbers, got object"),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=message):
            read_arrays(path)
    for content in (b"", b"PK\x03\x04 and no more", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz"):
            read_arrays(path)
