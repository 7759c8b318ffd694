"""Folders of every format that was ever written are kept in tests/fixtures, and are read as docs/format.md says."""

import hashlib
import json
import runpy
import shutil
import struct
from pathlib import Path

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles import storage

FIXTURES = Path(__file__).parent / "fixtures"
WRITER = runpy.run_path(str(FIXTURES / "write_format.py"))
make_model, options = WRITER["make_model"], WRITER["OPTIONS"]
FOLDERS = sorted(folder for folder in FIXTURES.glob("format-*") if folder.name.removeprefix("format-").isdigit())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


def expected(folder):
    content = json.loads((folder / "expected.json").read_text())
    return torch.tensor(content["inputs"]), torch.tensor(content["probabilities"]), content["training"]


def test_there_is_a_folder_of_the_present_format():
    assert f"format-{storage.FORMAT}" in [folder.name for folder in FOLDERS]


def test_a_saved_ensemble_predicts_what_it_did(folder):
    inputs, probabilities, _ = expected(folder)
    ensemble = ge.Ensemble.load(folder / "ensemble", make_model)
    torch.testing.assert_close(ensemble.predict_proba(inputs), probabilities, rtol=0, atol=1e-6)


def test_a_run_predicts_what_it_did_and_knows_what_it_was(folder):
    inputs, probabilities, _ = expected(folder)
    run = ge.load_run(folder / "run")
    torch.testing.assert_close(run.ensemble.predict_proba(inputs), probabilities, rtol=0, atol=1e-6)
    assert (run.size, run.finished) == (2, True)
    assert (run.strength, run.method) == (1.0, "greedy")
    assert [[record["epoch"] for record in history] for history in run.histories] == [[1, 2], [1, 2]]
    assert all(record["loss"] > 0 for history in run.histories for record in history)


def test_a_run_can_be_extended(folder, tmp_path):
    inputs, probabilities, training = expected(folder)
    shutil.copytree(folder / "run", tmp_path / "run")
    data = torch.tensor(training["x"]), torch.tensor(training["y"])
    ensemble = ge.fit(make_model, data, size=3, run_dir=tmp_path / "run", **options)
    torch.testing.assert_close(ensemble.predict_proba(inputs)[:2], probabilities, rtol=0, atol=1e-6)
    assert len(ensemble) == 3


def test_a_field_of_the_recipe_that_is_newer_than_the_folder_counts_as_its_default(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "run")
    run = storage.read_json(tmp_path / "run" / "run.json")
    assert run["configuration"]["recipe"].pop("clip", None) is ge.Recipe().clip is None
    storage.write_json(tmp_path / "run" / "run.json", run)
    training = expected(folder)[2]
    data = torch.tensor(training["x"]), torch.tensor(training["y"])
    assert len(ge.fit(make_model, data, size=2, run_dir=tmp_path / "run", **options)) == 2


# What follows reads the files with nothing of this package, by what docs/format.md says of them.


def json_checksum(content):
    content = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def tensors_checksum(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    checksum = json.loads(content[8 : 8 + length])["__metadata__"]["sha256"]
    assert content.count(checksum.encode(), 0, 8 + length) == 1
    assert hashlib.sha256(content.replace(checksum.encode(), b"0" * 64, 1)).hexdigest() == checksum
    return checksum


def test_every_checksum_is_what_the_page_says(folder):
    for path in folder.rglob("*.json"):
        if path.name != "expected.json":
            content = json.loads(path.read_text())
            assert content["sha256"] == json_checksum(content), path
    checksums = [tensors_checksum(path) for path in sorted((folder / "ensemble").rglob("*.safetensors"))]
    assert checksums == json.loads((folder / "ensemble" / "ensemble.json").read_text())["members"]
    for member in sorted((folder / "run" / "members").iterdir()):
        files = json.loads((member / "member.json").read_text())["files"]
        assert files == {
            "weights": tensors_checksum(member / "weights.safetensors"),
            "history": hashlib.sha256((member / "history.jsonl").read_bytes()).hexdigest(),
            "bank": tensors_checksum(folder / "run" / "bank" / f"{member.name}.safetensors"),
        }
