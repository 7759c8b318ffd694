import hashlib
import os
import re
import subprocess

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.storage import FolderError


def tensors():
    return {
        "a": torch.randn(3, 4),
        "b.c": torch.arange(5),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "half": torch.randn(2, 2).bfloat16(),
    }


KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32]
KINDS += [torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.float8_e5m2]


@given(
    kinds=st.lists(st.sampled_from(KINDS), max_size=6),
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=6, max_size=6),
    texts=st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=2),
)
def test_files_are_what_the_library_would_write(tmp_path_factory, kinds, shapes, texts):
    """Of any type and shape; with 64 zeros in a text of one's own, too."""
    texts = {key: text for key, text in texts.items() if key != "sha256"} | {"": "0" * 64}
    written = {f'ü " {number}': _random(kind, shapes[number]) for number, kind in enumerate(kinds)}
    path = tmp_path_factory.mktemp("files") / "x.safetensors"
    checksum = storage.write_tensors(path, written, texts)
    library = safetensors.torch.load(safetensors.torch.save(written, texts))
    read, metadata = storage.read_tensors(path, checksum=checksum)
    for found in (safetensors.torch.load_file(path), read):
        assert found.keys() == library.keys()
        for name, tensor in found.items():
            assert (tensor.dtype, tensor.shape) == (library[name].dtype, library[name].shape)
            assert tensor.flatten().view(torch.uint8).equal(library[name].flatten().view(torch.uint8))
    assert metadata == texts


def _random(kind, shape):
    values = torch.randint(0, 2 if kind is torch.bool else 100, shape)
    return torch.complex(values.float(), -values.float()) if kind.is_complex else values.to(kind)


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"x": torch.zeros(2, dtype=torch.complex128)}, {}, "cannot save tensors of torch.complex128"),
        ({"__metadata__": torch.zeros(2)}, {}, "no tensor can be called __metadata__"),
        ({"x": torch.zeros(2)}, {"sha256": "mine"}, "no metadata sha256"),
        ({"x": torch.zeros(2)}, {"k": "\ud800"}, "surrogates not allowed"),
        ({"x": torch.zeros(2), "y": torch.zeros(2, device="meta")}, {}, "meta"),
    ],
)
def test_what_no_one_could_read_is_refused_and_leaves_no_rubbish(tmp_path, tensors, metadata, message):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
        storage.write_tensors(tmp_path / "x.safetensors", tensors, metadata)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), None),
        (
            OSError(28, "No space left on device"),
            "could not write .*x: No space left on device. What was saved before is intact; make room and run again",
        ),
    ],
)
@pytest.mark.parametrize("write", [storage.write_tensors, lambda path, _: storage.write_bytes(path, [b"any"])])
def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch, write, error, message):
    def fail(descriptor):
        raise error

    write(tmp_path / "x", tensors())
    before = (tmp_path / "x").read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error), match=message):
        write(tmp_path / "x", tensors())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_a_tensor_that_changes_while_it_is_written_is_written_as_it_was(tmp_path, monkeypatch):
    changing = torch.zeros(3)
    digest = hashlib.sha256

    class Changing:
        def __init__(self, content):
            self.digest = digest(content)

        def update(self, content):
            self.digest.update(content)
            changing.add_(1)

        def hexdigest(self):
            return self.digest.hexdigest()

    monkeypatch.setattr(storage.hashlib, "sha256", Changing)
    storage.write_tensors(tmp_path / "x.safetensors", {"x": changing})
    monkeypatch.undo()
    assert storage.read_tensors(tmp_path / "x.safetensors")[0]["x"].tolist() == [0, 0, 0]


def test_lazily_conjugated_numbers_are_written_as_they_are(tmp_path):
    number = torch.tensor([1 + 2j]).conj()
    storage.write_tensors(tmp_path / "x.safetensors", {"x": number, "y": number.imag})
    read, _ = storage.read_tensors(tmp_path / "x.safetensors")
    assert read["x"].item() == 1 - 2j
    assert read["y"].item() == -2


def test_tensors_that_share_or_stride_memory_are_written(tmp_path):
    base = torch.randn(4, 6)
    storage.write_tensors(tmp_path / "x.safetensors", {"a": base, "b": base, "c": base.T, "d": base[:, ::2]})
    read, _ = storage.read_tensors(tmp_path / "x.safetensors")
    assert torch.equal(read["b"], base)
    assert torch.equal(read["c"], base.T)
    assert torch.equal(read["d"], base[:, ::2])


def altered(content, position):
    """A space becomes a NUL, a letter changes case: headers may still parse."""
    position %= len(content)
    return content[:position] + bytes([content[position] ^ 0x20]) + content[position + 1 :]


HARMS = {f"byte {at}": lambda content, at=at: altered(content, at) for at in range(0, 400, 7)}
HARMS |= {f"cut at {keep}": lambda content, keep=keep: content[:keep] for keep in (0, 5, 100, -1)}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_any_harm_is_noticed(tmp_path, harm):
    path = tmp_path / "x.safetensors"
    storage.write_tensors(path, {"a": torch.randn(10), "b": torch.randn(20)}, {"state": "{}"})
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(FolderError, match=r"x\.safetensors is damaged"):
        storage.read_tensors(path)


def test_another_intact_file_in_its_place_is_noticed(tmp_path):
    checksum = storage.write_tensors(tmp_path / "1", {"a": torch.zeros(2)})
    storage.write_tensors(tmp_path / "2", {"a": torch.ones(2)})
    (tmp_path / "2").replace(tmp_path / "1")
    with pytest.raises(FolderError, match="does not match its checksum"):
        storage.read_tensors(tmp_path / "1", checksum=checksum)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FolderError, match=r"nowhere is damaged .*missing.* Do this; nothing was changed"):
        storage.read_tensors(tmp_path / "nowhere", remedy="Do this")
    with pytest.raises(FolderError, match=r"nowhere\.json is damaged \(it is missing\)"):
        storage.read_json(tmp_path / "nowhere.json")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_lack_of_memory_is_no_damage_of_the_file(tmp_path, error):
    with pytest.raises(error), storage.reading(tmp_path / "x", "it is none of ours"):
        raise error


def test_json_comes_back_and_edits_are_noticed(tmp_path):
    path = tmp_path / "run.json"
    content = {"size": 5, "nested": {"lr": 0.1, "none": None}, "list": [1, 2.5, "x"]}
    storage.write_json(path, content)
    assert storage.read_json(path) == content
    path.write_text(path.read_text().replace('"size": 5', '"size": 6'))
    with pytest.raises(FolderError, match=r"run\.json is damaged .*content .*checksum"):
        storage.read_json(path)


def test_hash_of_a_tensor_depends_on_values_type_and_shape_alone():
    x = torch.randn(6, 4)
    assert storage.digest_of_tensor(x) == storage.digest_of_tensor(x.T.contiguous().T)
    different = [x + 1, x.double(), x.reshape(4, 6), x[:5]]
    assert len({storage.digest_of_tensor(value) for value in [x, *different]}) == 5
    large = torch.arange(10_000)
    assert storage.digest_of_tensor(large) != storage.digest_of_tensor(large.flip(0))
    assert storage.digest_of_tensor(torch.tensor(1.0)) != storage.digest_of_tensor(torch.tensor(2.0))


def left_behind(path):
    """Return what a process that has ended would have called what was to become `path`."""
    with subprocess.Popen(["true"]) as ended:
        pass
    temporary = storage.temporary_path(path)
    return temporary.with_name(temporary.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))


def test_temporary_names_are_unique_and_fit(tmp_path):
    long = tmp_path / ("\u00e4" * 120)
    names = {storage.temporary_path(long) for _ in range(100)}
    assert len(names) == 100
    storage.write_bytes(long, [b"new"])
    assert [file.name for file in tmp_path.iterdir()] == [long.name]


@pytest.mark.parametrize("as_folder", [False, True])
def test_what_a_killed_process_left_is_cleared_by_the_next_of_the_same_target(tmp_path, as_folder):
    found = left_behind(tmp_path / "x")
    found.mkdir() if as_folder else found.touch()
    storage.write_bytes(tmp_path / "y", [b"new"])
    assert found.exists()
    storage.write_bytes(tmp_path / "x", [b"new"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "y"]


def test_what_a_live_process_or_another_machine_is_writing_is_left_alone(tmp_path):
    own = storage.temporary_path(tmp_path / "x")
    elsewhere = own.with_name(re.sub(r"\.[0-9a-f]{8}-\d+-", ".01234567-999999999-", own.name))
    names = {own.name, elsewhere.name, ".x.tmp", ".x.thesis.tmp"}
    for name in names:
        (tmp_path / name).write_text("mine")
    storage.write_bytes(tmp_path / "x", [b"new"])
    assert {file.name for file in tmp_path.iterdir()} == {"x", *names}
    storage.clear_leftovers(tmp_path)  # of a folder that is locked
    assert {file.name for file in tmp_path.iterdir()} == {"x", ".x.tmp", ".x.thesis.tmp"}


def test_a_save_clears_what_a_killed_one_left(tmp_path):
    ensemble = ge.Ensemble.from_members([ge.models.MLP(2, (2,))])
    left_behind(tmp_path / "out").joinpath("members", "01").mkdir(parents=True)
    ensemble.save(tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_one_may_not_read_is_not_called_damaged(tmp_path):
    storage.write_tensors(tmp_path / "x.safetensors", tensors())
    (tmp_path / "x.safetensors").chmod(0)
    with pytest.raises(FolderError, match=r"x\.safetensors cannot be read: permission denied"):
        storage.read_tensors(tmp_path / "x.safetensors", remedy="Delete it")
