import os
import pickle
import pickletools

import numpy as np
import pytest

import greedy_ensembles as ge
from greedy_ensembles.data import cifar


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_binary_rows(tmp_path, random_bytes, label_bytes):
    rows = random_bytes(4, label_bytes + 3072)
    (tmp_path / "b.bin").write_bytes(rows.tobytes())
    images, labels = cifar.read_binary(tmp_path / "b.bin", label_bytes)
    assert (images[2, 1] == rows[2, label_bytes + 1024 : label_bytes + 2048].reshape(32, 32)).all()  # green
    assert (labels == rows[:, label_bytes - 1]).all()  # CIFAR-100: the fine label comes second
    (tmp_path / "b.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(ValueError, match=r"b\.bin is damaged"):
        cifar.read_binary(tmp_path / "b.bin", label_bytes)


def as_python_2(batch):
    """Return a pickle as Python 2 wrote it: byte strings, and numpy's old module."""
    content = pickle.dumps(batch, protocol=2)
    assert b"numpy._core.multiarray" in content or b"numpy.core.multiarray" in content
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.mark.parametrize("key", [b"labels", b"fine_labels", "labels"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_python_batches(tmp_path, random_bytes, key, order):
    rows = random_bytes(4, 3072)
    batch = {b"batch_label": b"testing batch 1 of 1", key: [3, 1, 2, 99], b"filenames": [b"a.png"] * 4}
    batch[b"data"] = np.asarray(rows, order=order)
    if key == b"fine_labels":
        batch[b"coarse_labels"] = [0, 0, 0, 0]
    for content in (as_python_2(batch), pickle.dumps(batch, protocol=3)):
        (tmp_path / "batch").write_bytes(content)
        images, labels = cifar.read_python(tmp_path / "batch")
        assert (images.reshape(4, -1) == rows).all()
        assert labels.tolist() == [3, 1, 2, 99]


def test_class_names(tmp_path):
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"worm"]}, 2))
    (tmp_path / "names.txt").write_text("apple\nworm\n")
    for file in ("meta", "names.txt"):
        assert cifar.read_class_names(tmp_path / file) == ("apple", "worm")
    (tmp_path / "meta").write_bytes(pickle.dumps({b"coarse_label_names": [b"fruit"]}, 2))
    with pytest.raises(ValueError, match="no list of names called fine_label_names"):
        cifar.read_class_names(tmp_path / "meta")


class Hostile:
    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


def evil(tmp_path):
    mark = tmp_path / "executed"
    lent = b"cnumpy.core.multiarray\n_reconstruct\n"
    yield "system", pickle.dumps({"data": Hostile(os.system, f"touch {mark}")})
    yield "eval", pickle.dumps(Hostile(eval, f"open({str(mark)!r}, 'w')"))
    yield "mkdir", pickle.dumps(Hostile(os.mkdir, str(mark)), 2)
    yield "getattr", b"cbuiltins\ngetattr\n."
    yield "a module below an allowed one", b"cnumpy.core.multiarray\n_reconstruct.__globals__\n."
    yield "numpy's loader", b"cnumpy\nload\n(S'x'\ntR."
    yield "an object array", pickle.dumps({"data": np.array([{}], object)}, 2)
    yield "numbers of another type", pickle.dumps({"data": np.zeros(3)}, 2)
    yield "a class of its own", pickle.dumps(Hostile(np.matrix, b"1"))
    yield "attributes on what it was lent", lent + b"}S'_kind'\nS'bytes'\nsb."
    yield "slots of what it was lent", lent + b"(N}S'_kind'\nS'bytes'\nstb."
    yield "a bare function", lent + b"."
    yield "an array without state", lent + b"(tR."
    yield "a persistent id", b"Psome\n."
    yield "an extension", b"\x82\x01."
    yield "a shape that does not fit", as_python_2({"data": np.zeros(8, np.uint8)}).replace(b"K\x08\x85", b"K\x09\x85")
    yield "a slot that fills the memory", b"}r\xff\xff\xff\x7f."
    yield "a slot in text", b"}p4000000000\n."
    yield "a number as key", pickle.dumps({3: b"x"}, 2)
    yield "a nest of lists", b"(l" * 50 + b"a" * 49 + b"."
    yield "an endless list", b"]q\x00h\x00a."
    doubled = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60))
    yield "tuples that double, as a key", b"}K\x01\x85q\x00" + doubled + b"Ns."
    wide = b"".join(b"(" + 99 * (b"h" + bytes([i])) + b"tq" + bytes([i + 1]) for i in range(6))
    yield "tuples that are wide", b"}K\x01\x85q\x00" + wide + b"Ns."
    yield "an encoding that doubles", b"c_codecs\nencode\n(]q\x00" + b"h\x00]h\x00ah\x00aq\x00" * 40 + b"tR."
    text = b"X" + (10**4).to_bytes(4, "little") + b"a" * 10**4 + b"q\1X\6\0\0\0latin1q\2\x86R"
    yield (
        "a text that many bytes are made of",
        (b"}X\6\0\0\0labels](c_codecs\nencode\nq\0" + text + b"h\0h\1h\2\x86R" * 9 + b"es."),
    )
    yield "nothing", b""
    yield "half", pickle.dumps({"data": np.zeros(100, np.uint8)}, 2)[:-40]
    yield "text", b"not a pickle at all"


def test_hostile_pickles_are_refused_and_run_nothing(tmp_path, random_bytes):
    for what, content in evil(tmp_path):
        (tmp_path / "batch").write_bytes(content)
        with pytest.raises(ValueError, match="batch is refused as a pickle"):
            cifar.load_pickle(tmp_path / "batch")
        assert not (tmp_path / "executed").exists(), what
    rows = random_bytes(2, 3072)
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": rows, b"labels": [1, 0]}, protocol=3))
    assert (cifar.read_python(tmp_path / "batch")[0].reshape(2, -1) == rows).all()  # the unpickler still works


def test_opcodes_are_counted(tmp_path, random_bytes):
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": random_bytes(2, 3072), b"labels": [1, 0]}, protocol=3))
    cifar.read_python(tmp_path / "batch")
    with ge.limits(opcodes=10), pytest.raises(ValueError, match=r"batch is refused.*ge\.limits\(opcodes="):
        cifar.read_python(tmp_path / "batch")


def test_the_pickles_tested_are_like_the_published_ones():
    """Those of Python 2 need no name but these three (and Python 3's way to write bytes)."""
    names = {
        argument
        for opcode, argument, _ in pickletools.genops(as_python_2({b"data": np.zeros(3, np.uint8)}))
        if opcode.name == "GLOBAL"
    }
    assert names <= {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype", "_codecs encode"}


def test_a_pickle_that_is_no_batch(tmp_path):
    images = np.zeros((2, 3072), np.uint8)
    for batch in ({"data": images}, {"data": images[:, 1:], "labels": [0, 1]}, {"data": images, "labels": ["a"]}):
        (tmp_path / "batch").write_bytes(pickle.dumps(batch, 2))
        with pytest.raises(ValueError, match="is not a CIFAR batch"):
            cifar.read_python(tmp_path / "batch")


def test_severities_of_the_corrupted_set(tmp_path):
    images = np.repeat(np.arange(5, dtype=np.uint8), 4)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    for severity in range(1, 6):
        read, labels = cifar.read_corrupted(tmp_path, "fog", severity)
        assert read.shape == (4, 3, 32, 32)
        assert (read == severity - 1).all()
        assert labels.tolist() == [0, 1, 2, 3]
    assert len(cifar.read_corrupted(tmp_path, "fog", None)[0]) == 20
    with pytest.raises(ValueError, match="1 to 5"):
        cifar.read_corrupted(tmp_path, "fog", 6)
    with pytest.raises(ValueError, match="did you mean 'fog'"):
        cifar.read_corrupted(tmp_path, "frog", 1)
    np.save(tmp_path / "fog.npy", images.astype(float))
    with pytest.raises(ValueError, match="float64"):
        cifar.read_corrupted(tmp_path, "fog", 1)
    np.save(tmp_path / "fog.npy", np.array([{}], object))
    with pytest.raises(ValueError, match=r"fog\.npy"):
        cifar.read_corrupted(tmp_path, "fog", 1)
