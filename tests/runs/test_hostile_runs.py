"""Run folders from people whom one should not trust: reading them, and training on in them.

As with saved ensembles (tests/test_hostile_folders.py), whoever writes a folder can also write right checksums.
"""

import shutil
from functools import partial
from hashlib import sha256

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.storage import FolderError

make_model = partial(ge.models.MLP, 2, hidden=(3,))
DEEP = 100_000


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, size=2)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def train(folder, size, **options):
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    recipe = ge.Recipe(epochs=2, batch_size=10)
    options = {"strength": 1.0, "recipe": recipe, "progress": False, "device": "cpu", "run_dir": folder} | options
    return ge.fit(make_model, (x, (x[:, 0] > 0).long()), size=size, **options)


def load(folder):
    """Read everything that can be read of a run, and predict with it."""
    return ge.load_run(folder).ensemble.predict_proba(torch.zeros(3, 2))


def forge(path, **changes):
    """Change fields of a JSON file, and give it the checksum that it then has to have."""
    storage.write_json(path, {**storage.read_json(path), **changes})


@pytest.mark.parametrize("file", ["run.json", "members/02/member.json"])
@pytest.mark.parametrize("text", ["[" * DEEP + "]" * DEEP, "9" * 10_000, "null", "cos\nsystem"], ids=lambda t: t[:4])
def test_odd_json_is_refused(run, file, text):
    assert load(run).shape == (2, 3, 2)
    (run / file).write_text(text)
    with pytest.raises(FolderError, match=rf"{file} is damaged"):
        load(run)


def model(*arguments, **keywords):
    return {"model": {"partial": "greedy_ensembles.models.mlp.MLP", "args": list(arguments), "keywords": keywords}}


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


def state_of_a_checkpoint(run):
    """Interrupt a third member, and return what its checkpoint holds."""

    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, size=3, callbacks=[stop])
    return storage.read_tensors(run / "checkpoint.safetensors")


def turned(tensors):
    return dict(zip(tensors, reversed(tensors.values()), strict=True))


CHECKPOINTS = {
    "no state": lambda tensors, state: (tensors, {}),
    "state that is no JSON": lambda tensors, state: (tensors, {"state": "cos\nsystem"}),
    "state that is deep": lambda tensors, state: (tensors, {"state": "[" * DEEP + "]" * DEEP}),
    "state of another kind": lambda tensors, state: (tensors, {"state": "[1, 2]"}),
    "two kinds at once": lambda tensors, state: (tensors, {"state": '{"dict": [], "list": []}'}),
    "a tensor that is not there": lambda tensors, state: ({}, {"state": state}),
    "an empty state": lambda tensors, state: (tensors, {"state": '{"dict": [["number", 3]]}'}),
    "tensors in another order": lambda tensors, state: (turned(tensors), {"state": state}),
}


@pytest.mark.parametrize("change", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_checkpoints_of_other_kinds_are_refused(run, change):
    tensors, metadata = state_of_a_checkpoint(run)
    tensors = {name: value.clone() for name, value in tensors.items()}
    storage.write_tensors(run / "checkpoint.safetensors", *change(tensors, metadata["state"]))
    with pytest.raises(FolderError, match="checkpoint"):
        train(run, size=3)
