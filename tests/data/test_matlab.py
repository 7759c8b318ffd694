import numpy as np
import pytest
from scipy.io import savemat

from greedy_ensembles.data.matlab import read_svhn


def test_ten_means_the_digit_zero(tmp_path, random_bytes):
    pixels = random_bytes(32, 32, 3, 4)
    savemat(tmp_path / "t.mat", {"X": pixels, "y": np.array([[10], [1], [9], [10]], np.uint8)})
    images, labels = read_svhn(tmp_path / "t.mat")
    assert labels.tolist() == [0, 1, 9, 0]
    assert images.shape == (4, 3, 32, 32)
    assert images[2, 1, 5, 7] == pixels[5, 7, 1, 2]


def test_damage_is_named(tmp_path, random_bytes):
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
