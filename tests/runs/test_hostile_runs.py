"""Run folders from people whom one should not trust: reading them, and training on in them.

As with saved ensembles (tests/test_hostile_folders.py), whoever writes a folder can also write right checksums.
"""

import shutil
from hashlib import sha256

import pytest
import torch
from tests.runs.forgery import forge, train

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.storage import FolderError

DEEP = 100_000


def load(folder):
    """Read everything that can be read of a run, and predict with it."""
    return ge.load_run(folder).ensemble.predict_proba(torch.zeros(3, 2))


@pytest.mark.parametrize("file", ["run.json", "members/02/member.json"])
@pytest.mark.parametrize("text", ["[" * DEEP + "]" * DEEP, "9" * 10_000, "null", "cos\nsystem"], ids=lambda t: t[:4])
def test_odd_json_is_refused(run, file, text):
    assert load(run).shape == (2, 3, 2)
    (run / file).write_text(text)
    with pytest.raises(FolderError, match=rf"{file} is damaged"):
        load(run)


def model(*arguments, kind="mlp.MLP", **keywords):
    return {"model": {"partial": f"greedy_ensembles.models.{kind}", "args": list(arguments), "keywords": keywords}}


@pytest.mark.parametrize(
    "changes",
    [{"size": value} for value in (True, 2.0, 0, -1, "2", None, [2])]
    + [{"configuration": value} for value in (None, [], "x", {}, {"recipe": 3}, {"recipe": {"normalize": [1]}})]
    + [{"members_at_once": value} for value in (True, 0, "2", None)]
    + [{"threads": value} for value in (True, 0, "2", 10**9)]
    + [{"inputs": value} for value in (3, {"shape": [0], "type": "uint8"}, {"shape": [4], "type": "eval"})]
    + [{"extended_from": 5}, {"format": 3}]
    + [
        model("a"),
        model(10**30, hidden=[10**30]),
        model(2, hidden=[10**6, 10**6]),  # four terabytes
        model(2, hidden=5),
        model(2, depth=3),
        model(2, hidden=[-1]),
        model(None, None, None, None, None),
        model(2, hidden=[30]),
        model(2, hidden=[1] * 10**6),  # each of them a layer
        model(10**12, kind="preresnet.PreResNet"),
        model(9 * 10**11 + 2, kind="preresnet.PreResNet"),
        model(8, blocks_per_stage=10**12, kind="preresnet.PreResNet"),
        model(8, classes=10**12, kind="preresnet.PreResNet"),
        model(10**12, 10**12, kind="vgg.VGG16BN"),
        model(10**12, 10**12, kind="wide_resnet.WideResNet28x10"),
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_run_json_with_fields_of_other_kinds_is_refused(run, changes):
    forge(run / "run.json", **changes)
    with pytest.raises(FolderError, match=r"run\.json"):
        load(run)


@pytest.mark.parametrize(
    "changes",
    [
        *({"data": value} for value in (3, [1], "x", {"name": []}, {"name": "x", "images": "many"})),
        *({"strength": value} for value in (10**400, "x", [1])),
        {"validation": 10**400},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_what_a_run_says_of_itself_may_be_anything(run, changes):
    """It is for people, on the card of its ensemble, and left out where it makes no sense."""
    configuration = storage.read_json(run / "run.json")["configuration"]
    forge(run / "run.json", **(changes if "data" in changes else {"configuration": {**configuration, **changes}}))
    assert load(run).shape == (2, 3, 2)


@pytest.mark.parametrize(
    "description",
    [
        None,
        "os.system",
        {"partial": "os.system", "args": ["mkdir executed"], "keywords": {}},
        {"partial": "greedy_ensembles.models.mlp.check_count", "args": [], "keywords": {}},
        {"partial": {"partial": "os.system"}, "args": [], "keywords": {}},
        {"partial": "greedy_ensembles.models.mlp.MLP", "args": 3, "keywords": []},
        {"partial": "greedy_ensembles.models.mlp.MLP"},
    ],
    ids=str,
)
def test_a_model_that_is_none_of_ours_is_not_looked_up(run, description, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forge(run / "run.json", model=description)
    with pytest.raises(ValueError, match="was trained with a model of your own"):
        load(run)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("files", [None, [], {}, {"weights": 3, "history": "x"}, {"weights": "../x", "history": ["x"]}])
def test_member_json_with_fields_of_other_kinds_is_refused(run, files):
    forge(run / "members" / "02" / "member.json", files=files)
    with pytest.raises(FolderError, match=r"02/member\.json is damaged \(its 'files'"):
        load(run)


@pytest.mark.parametrize(
    "facts", [{"validation_accuracy": value} for value in ("x", [], True, 1.5, -1)] + [{"last_loss": "low"}], ids=str
)
def test_member_json_with_figures_that_are_none_is_refused(run, facts):
    forge(run / "members" / "02" / "member.json", **facts)
    with pytest.raises(FolderError, match=r"02/member\.json is damaged"):
        train(run, size=2)


@pytest.mark.parametrize("lines", ["[" * DEEP, "{", "9" * 10_000], ids=["deep", "truncated", "huge"])
def test_a_history_that_is_no_json_is_refused(run, lines):
    history = run / "members" / "01" / "history.jsonl"
    history.write_text(lines)
    member = history.with_name("member.json")
    files = storage.read_json(member)["files"]
    forge(member, files={**files, "history": sha256(lines.encode()).hexdigest()})
    with pytest.raises(FolderError, match=r"history\.jsonl is damaged"):
        load(run)


@pytest.mark.parametrize("place", ["checkpoint.safetensors.tmp", "lock", "members/03"])
def test_a_run_that_goes_on_writes_nothing_through_links(run, tmp_path, place):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    (run / place).unlink(missing_ok=True)
    (run / place).symlink_to(victim if place == "members/03" else victim / "file")
    with pytest.raises(FolderError, match=f"{place} is a link"):
        train(run, size=3)
    assert [file.name for file in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "mine"


def swap(one, other):
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)


@pytest.mark.parametrize("bank", [False, True], ids=["members", "members and bank"])
def test_swapped_members_are_noticed(run, bank):
    swap(run / "members" / "01", run / "members" / "02")
    if bank:
        swap(run / "bank" / "01.safetensors", run / "bank" / "02.safetensors")
    for use in (load, lambda folder: train(folder, size=2)):
        with pytest.raises(FolderError, match=r"01/member\.json is damaged \(it is of member 2"):
            use(run)


def test_a_member_of_another_run_is_noticed(run, tmp_path):
    train(tmp_path / "other", size=2, seed=10)
    shutil.rmtree(run / "members" / "02")
    shutil.copytree(tmp_path / "other" / "members" / "02", run / "members" / "02")
    with pytest.raises(FolderError, match=r"02/member\.json is damaged \(it is of another run"):
        load(run)


@pytest.mark.parametrize(
    "outputs",
    [
        {"outputs": torch.zeros(1, 2)},
        {"outputs": torch.zeros(18, 3)},
        {"outputs": torch.zeros(18, 2, dtype=torch.int64)},
        {"outputs": torch.full((18, 2), torch.nan)},
        {"others": torch.zeros(18, 2)},
        {},
    ],
    ids=["one row", "more classes", "whole numbers", "no numbers", "another name", "nothing"],
)
def test_a_bank_of_other_outputs_is_refused(run, outputs):
    assert storage.read_tensors(run / "bank" / "01.safetensors")[0]["outputs"].shape == (18, 2)
    checksum = storage.write_tensors(run / "bank" / "01.safetensors", outputs)
    member = run / "members" / "01" / "member.json"
    forge(member, files={**storage.read_json(member)["files"], "bank": checksum})
    with pytest.raises(FolderError, match=r"bank/01\.safetensors is damaged .*outputs of shape \(18, 2"):
        train(run, size=3)


def test_a_member_without_its_bank_is_refused(run):
    member = run / "members" / "01" / "member.json"
    files = {name: checksum for name, checksum in storage.read_json(member)["files"].items() if name != "bank"}
    forge(member, files=files)
    with pytest.raises(FolderError, match=r"01/member\.json is damaged \(it names no bank"):
        train(run, size=3)
