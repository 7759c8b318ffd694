import numpy as np
import pytest

from greedy_ensembles.data.arrays import read_arrays


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
        ({"x": np.array([{}], object)}, "a.npz.*allow_pickle"),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=message):
            read_arrays(path)
    for content in (b"", b"PK\x03\x04 and no more", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz"):
            read_arrays(path)
