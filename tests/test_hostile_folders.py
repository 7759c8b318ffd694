"""Folders from people whom one should not trust: whatever is in them, loading executes nothing and says what is wrong.

Whoever writes a folder can also write right checksums, so those protect from accidents alone.
"""

import io
import json
import os
import pickle
import shutil
import struct

import pytest
import torch
from safetensors.torch import save
from tests.runs.forgery import forge, make_model

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.cli.predict import open_saved
from greedy_ensembles.storage import FolderError


class Bomb:
    """Its pickle makes a file when it is read."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def saved(tmp_path):
    ge.Ensemble.from_members([make_model(), make_model()], (0.5, 2.0)).save(tmp_path / "saved")
    return tmp_path / "saved"


def load(folder):
    return ge.Ensemble.load(folder, make_model).predict_proba(torch.zeros(3, 2))


@pytest.mark.parametrize("kind", ["pickle", "torch checkpoint", "old torch checkpoint"])
@pytest.mark.parametrize("place", ["ensemble.json", "members/01/weights.safetensors"])
def test_pickles_are_not_read(saved, tmp_path, kind, place):
    trace = tmp_path / "executed"
    buffer = io.BytesIO()
    if kind == "pickle":
        buffer.write(pickle.dumps({"members": Bomb(trace)}))
    else:
        torch.save({"weight": Bomb(trace)}, buffer, _use_new_zipfile_serialization=kind == "torch checkpoint")
    (saved / place).write_bytes(buffer.getvalue())
    with pytest.raises(FolderError, match=place.rpartition("/")[2]):
        load(saved)
    assert not trace.exists()
    with pytest.raises(FileExistsError):  # the bomb itself works
        [pickle.loads(pickle.dumps(Bomb(trace))) for _ in range(2)]


DEEP = 100_000
TEXTS = {
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "deep inside": '{"sha256": "x", "members": ' + "[" * DEEP + "]" * DEEP + "}",
    "a huge number": '{"sha256": "x", "format": ' + "9" * 10_000 + "}",
    "a number": "1e999",
    "text": '"members"',
    "nothing": "null",
    "a list": "[]",
    "no checksum": '{"members": ["a"]}',
    "an empty file": "",
    "half of an object": "{",
    "a checksum of another type": '{"sha256": {"a": [1]}}',
    "not UTF-8": b"\xff\xfe{\x00}\x00",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_odd_json_is_refused(saved, text):
    (saved / "ensemble.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FolderError, match=r"ensemble\.json is damaged"):
        load(saved)


NUMBERS = [True, 1.0, 0, 2, -1, 10**400, "1", None, [1], {}]
CHECKSUMS = [None, 3, "../../elsewhere", {"1": "a"}, [], [None], [1.5], [["a"]]]
CHECKSUMS += [["../../../etc/passwd"], ["0" * 64] * 3]
NORMALS = [5, "ab", [1], [1, 2, 3], [0, 0], [[0, 0], [1]], {"a": 1, "b": 2}, [10**400, 1], ["x", "y"], [None, 1]]

FLOATS = {"type": "float32"}
INPUTS = [
    *(3, "x", [], {}, FLOATS, {"shape": [4]}, {"shape": [4], "type": "load"}, {"shape": [4], "type": ["uint8"]}),
    *({**FLOATS, "shape": shape} for shape in (4, [], [0], [-1], [4.0], [True], ["4"], [10**6, 10**6], [10**400])),
]


@pytest.mark.parametrize(
    "changes",
    [{"format": value} for value in NUMBERS if value != 2]
    + [{"members": value} for value in CHECKSUMS]
    + [{"normalize": value} for value in NORMALS]
    + [{"inputs": value} for value in INPUTS]
    + [{"notes": value} for value in (None, 3, ["a"], {"a": 1}, {"a": ["b"]})],
    ids=lambda changes: str(changes)[:50],
)
def test_ensemble_json_with_fields_of_other_kinds_is_refused(saved, changes):
    forge(saved / "ensemble.json", **changes)
    with pytest.raises(FolderError, match=r"ensemble\.json|weights\.safetensors"):
        load(saved)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_json_does_not_have_are_refused(saved, value):
    forge(saved / "ensemble.json", normalize=[[0.0], [value]])
    with pytest.raises(FolderError, match=r"ensemble\.json is damaged .*normalize .*finite"):
        load(saved)


def header(description, data=b""):
    text = description if isinstance(description, bytes) else json.dumps(description).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


LIES = {
    "a header longer than the file": struct.pack("<Q", 2**62) + b"{}",
    "a header of a terabyte": struct.pack("<Q", 2**40) + b"{}" * 100,
    "no header": b"\x00" * 4,
    "an empty file": b"",
    "more data than there is": header({"a": tensor(shape=(200,), offsets=(0, 800))}, bytes(8)),
    "a shape larger than its data": header({"a": tensor(shape=(1000, 1000))}, bytes(8)),
    "a shape that overflows": header({"a": tensor(shape=(2**62, 4))}, bytes(8)),
    "an empty shape that overflows": header({"a": tensor(shape=(2**63, 2**63, 0), offsets=(0, 0))}),
    "offsets that overlap": header({"a": tensor(), "b": tensor()}, bytes(8)),
    "offsets that go back": header({"a": tensor(offsets=(8, 0))}, bytes(8)),
    "negative offsets": header({"a": tensor(offsets=(-8, 0))}, bytes(8)),
    "a hole": header({"a": tensor(offsets=(8, 16))}, bytes(16)),
    "data that no tensor has": header({"a": tensor()}, bytes(800)),
    "an unknown type": header({"a": tensor(dtype="PICKLE")}, bytes(8)),
    "metadata that is no text": header({"__metadata__": {"sha256": 3}, "a": tensor()}, bytes(8)),
    "metadata that is deep": header(b'{"__metadata__":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"),
    "no JSON": header(b"cos\nsystem\n(S'true'\ntR."),
    "no checksum": save({"a": torch.zeros(2)}),
    "a false checksum": save({"a": torch.zeros(2)}, {"sha256": "0" * 64}),
    "an empty checksum": save({"a": torch.zeros(2)}, {"sha256": ""}),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES.keys())
def test_safetensors_that_lie_are_refused(saved, content):
    (saved / "members" / "01" / "weights.safetensors").write_bytes(content)
    with pytest.raises(FolderError, match=r"01/weights\.safetensors is damaged"):
        load(saved)


def forge_weights(folder, tensors):
    path = folder / "members" / "01" / "weights.safetensors"
    checksum = storage.write_tensors(path, tensors)
    forge(folder / "ensemble.json", members=[checksum, *storage.read_json(folder / "ensemble.json")["members"][1:]])


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: {},
        lambda weights: weights | {"0.weight": torch.zeros(3, 3)},
        lambda weights: weights | {"../../escaped": torch.zeros(1)},
        lambda weights: weights | {"__class__": torch.zeros(1)},
        lambda weights: {**weights, "0.weight": torch.zeros(3, 2, dtype=torch.int64)},
        lambda weights: {**weights, "0.weight": torch.zeros(3, 2, dtype=torch.bool)},
        lambda weights: {**weights, "0.weight": torch.zeros(3, 2, dtype=torch.float64)},
    ],
    ids=["none", "another shape", "a path", "an attribute", "whole numbers", "truth values", "one in double precision"],
)
def test_well_sealed_weights_of_another_model_are_refused(saved, change):
    forge_weights(saved, change(make_model().state_dict()))
    with pytest.raises(ValueError, match=r"make_model does not fit .*01/weights\.safetensors"):
        load(saved)


@pytest.mark.parametrize(
    "place", ["members", "members/01", "members/01/weights.safetensors", "ensemble.json", "notes.txt", "deep/er/link"]
)
def test_links_that_lead_out_of_the_folder_are_refused(saved, tmp_path, place):
    outside = tmp_path / "outside"
    shutil.copytree(saved, outside)
    link = saved / place
    if link.is_dir():
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    target = outside / place if (outside / place).exists() else outside / "ensemble.json"
    link.symlink_to(target)
    with pytest.raises(FolderError, match=rf"{place} is a link to .*outside.*; put a copy in its place"):
        load(saved)


def test_links_within_the_folder_and_to_the_folder_are_fine(saved, tmp_path):
    (tmp_path / "link").symlink_to(saved)
    (saved / "again.json").symlink_to("ensemble.json")
    (saved / "circle").symlink_to("circle")
    assert load(tmp_path / "link").shape == load(saved).shape == (2, 3, 2)


@pytest.mark.parametrize("name", ["members/01/weights.safetensors", "ensemble.json"])
@pytest.mark.parametrize("read", [load, ge.load_run, open_saved])
def test_pipes_are_refused_rather_than_waited_for(saved, name, read):
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(FolderError, match=rf"{name} is neither a file nor a folder"):
        read(saved)


@pytest.mark.parametrize("read", [load, ge.load_run, open_saved])
def test_folders_that_are_not_there_or_are_files_say_so(tmp_path, read):
    with pytest.raises(FolderError, match="saved does not exist"):
        read(tmp_path / "saved")
    (tmp_path / "saved").touch()
    with pytest.raises(FolderError, match="saved is a file"):
        read(tmp_path / "saved")


@pytest.mark.parametrize("name", ["ensemble.json", "members/01/weights.safetensors"])
def test_folders_in_place_of_files_are_refused(saved, name):
    (saved / name).unlink()
    (saved / name).mkdir()
    with pytest.raises(FolderError, match=rf"{name} is damaged"):
        load(saved)
