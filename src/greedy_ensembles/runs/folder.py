"""The run folder: everything a run needs to go on after a kill, and a person to read what happened.

    run.json                   configuration, size, versions, command, commit
    members/NN/                weights.safetensors (selected epoch), history.jsonl, member.json (written last)
    bank/NN.safetensors        the member's outputs on the p* set
    checkpoint.safetensors     the members under way after their last epoch: model, optimizer, generators, history
    lock                       held by the process that trains here, and released by the system when it ends

Every file is replaced as a whole (`greedy_ensembles.storage`). A member counts once its member.json exists; a kill
before that leaves its last checkpoint, from which the same files are written again.
"""

import hashlib
import json
import re
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from greedy_ensembles import storage
from greedy_ensembles.engines.member import Finished, History
from greedy_ensembles.ensemble import ModelFactory
from greedy_ensembles.heads import Heads
from greedy_ensembles.method import Bank
from greedy_ensembles.runs.configuration import differences, read_run
from greedy_ensembles.saving import load_members, weights_file, write_member
from greedy_ensembles.storage import FolderError, damaged, require

#: Seconds up to which every epoch is saved. What takes longer (many large networks at once) is saved when as many times
#: of its own duration have passed, so that it takes a tenth of all time at most; a kill then costs that much work.
_BRIEF, _PATIENCE = 1.0, 10
_LEFT_BY_A_KILL = re.compile(r"lock|\.run\.json\..*\.tmp")  # at the very start, before there is a run


class FolderInUseError(FolderError):
    """Another process is training in a run folder."""


def member_file(path: Path, number: int, name: str = "member.json") -> Path:
    """Return a file of member `number`, counted from 1."""
    return weights_file(path, number).with_name(name)


def bank_file(path: Path, number: int) -> Path:
    """Return where member `number`, counted from 1, has its outputs on the p* set."""
    return path / "bank" / f"{number:02d}.safetensors"


def read_members(path: Path) -> list[dict[str, Any]]:
    """Return what the member.json files of the finished members say, in order."""
    members: list[dict[str, Any]] = []
    file = path / "run.json"
    run = storage.read_json(file).get("id") if file.exists() else None  # older folders have none, nor their members
    while (file := member_file(path, len(members) + 1)).exists():
        facts = storage.read_json(file)
        files: Any = facts.get("files")
        proper = isinstance(files, dict) and {"weights", "history"} <= files.keys()
        proper = proper and all(isinstance(checksum, str) for checksum in files.values())
        require(proper, file, "its 'files' are not the checksums of weights and history")
        why = f"it is of member {facts.get('number')!r}, in the place of another"
        require(facts.get("number") == len(members) + 1, file, why)
        require(facts.get("run") == run, file, "it is of another run")
        accuracy, numbers = facts.get("validation_accuracy"), (int, float, type(None))
        proper = type(accuracy) in numbers and 0 <= (accuracy or 0) <= 1 and type(facts.get("last_loss")) in numbers
        require(proper, file, "its accuracy or loss is no such number")
        members.append(facts)
    later = sorted((path / "members").glob("*/member.json"))[len(members) :]
    if later:
        raise damaged(file, f"it is missing while {later[0]} exists")
    return members


def read_histories(path: Path, members: list[dict[str, Any]]) -> list[History]:
    """Return the epochs of the finished members, of which their facts have the checksums."""
    histories: list[History] = []
    for number, facts in enumerate(members, start=1):
        file = member_file(path, number, "history.jsonl")
        with storage.reading(file, "it is not JSON, line by line"):
            lines = file.read_bytes()
            intact = hashlib.sha256(lines).hexdigest() == facts["files"]["history"]
            require(intact, file, "its content does not match its checksum")
            histories.append([json.loads(line) for line in lines.splitlines()])
    return histories


def _verify(path: Path) -> None:
    members = read_members(path)
    read_histories(path, members)
    for number, facts in enumerate(members, start=1):
        storage.read_tensors(weights_file(path, number), checksum=facts["files"]["weights"])
        if "bank" in facts["files"]:
            storage.read_tensors(bank_file(path, number), checksum=facts["files"]["bank"])


class RunFolder:
    """A store on disk, open for training; make one with `open_run_folder`."""

    def __init__(
        self, path: Path, make_model: ModelFactory, device: torch.device, earlier: Iterable[nn.Module] = ()
    ) -> None:
        self.path, self._make_model, self._device, self._earlier = path, make_model, device, list(earlier)
        self._checkpoint = path / "checkpoint.safetensors"
        self._pace = self._written = 0.0  # seconds that the last checkpoint took, and when it was there
        # What later members share with the first, which may be gone by then, is stored once.
        self._first: dict[str, weakref.ref[Tensor]] = {}
        self._checksum = ""
        members = self.facts()
        self.finished = len(members)
        if members and isinstance(make_model, Heads) and members[0].get("origin") != "earlier":
            self._remember(make_model(), members[0]["files"]["weights"])  # the configuration says: the same backbone
        self._run = read_run(path)
        self._bound: dict[str, str] = {"run": self._run["id"]} if "id" in self._run else {}  # binds files to this run
        self.threads: int | None = self._run.get("threads")  #: that the run began with, on which its bits depend

    @property
    def members_at_once(self) -> int | None:
        """How many members train together, once that is decided."""
        return self._run.get("members_at_once")

    @members_at_once.setter
    def members_at_once(self, count: int) -> None:
        self._run["members_at_once"] = count
        storage.write_json(self.path / "run.json", self._run)

    def fill(self, bank: Bank) -> None:
        """Put the outputs of the finished members into the bank."""
        for number, facts in enumerate(self.facts(), start=1):
            file, checksum = bank_file(self.path, number), facts["files"].get("bank")
            require(checksum is not None, member_file(self.path, number), "it names no bank")
            tensors, _ = storage.read_tensors(file, self._device, checksum)
            row = tensors.pop("outputs", torch.empty(0))
            proper = row.shape == bank.row_shape and row.is_floating_point() and bool(row.isfinite().all())
            require(proper and not tensors, file, f"it does not hold outputs of shape {tuple(bank.row_shape)}")
            bank.append(row)

    def checkpoint(self) -> dict[str, Any] | None:
        """Return the state of the members under way, if one was saved."""
        if not self._checkpoint.exists():
            return None
        remedy = f"Delete it to train member {self.finished + 1} again from its first epoch"
        tensors, metadata = storage.read_tensors(self._checkpoint, remedy=remedy)
        # Cloned, since what was read is mapped from a file that the next epoch replaces.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        with storage.reading(self._checkpoint, "it holds no state of members", remedy):
            state: dict[str, Any] = storage.unflatten(json.loads(metadata["state"]), tensors)
            numbers = [member["number"] for member in state["members"]]
            first, until = numbers[0], state.get("until", numbers[-1])  # the last that comes of these; 0.1 had none
            proper = type(first) is int and first > 0 and numbers == list(range(first, first + len(numbers)))
            proper = proper and type(until) is int and numbers[-1] <= until <= self._run["size"]
            proper = proper and len({member["epoch"] for member in state["members"]}) == 1  # a group, at one epoch
        require(proper, self._checkpoint, "it holds no state of members", remedy)
        require(metadata.get("run") == self._bound.get("run"), self._checkpoint, "it is of another run", remedy)
        if until <= self.finished:  # a kill came between the end of these members and this
            self._checkpoint.unlink()
            return None
        if first > self.finished + 1:
            missing = member_file(self.path, self.finished + 1)
            raise damaged(missing, f"it is missing while {self._checkpoint.name} is of member {first}")
        for member in state["members"]:
            member["file"] = str(self._checkpoint)  # for messages
        return state

    def is_due(self, last: bool) -> bool:
        """Return whether it is time to save: always where that is quick, and after the last epoch."""
        return last or self._pace <= _BRIEF or time.monotonic() - self._written >= _PATIENCE * self._pace

    def save_checkpoint(self, state: Callable[[], dict[str, Any]], last: bool) -> None:
        """Replace the state of the members under way, unless that would take more time than a kill could cost."""
        if not self.is_due(last):
            return
        start = time.monotonic()
        tensors: dict[str, Tensor] = {}
        skeleton = storage.flatten(state(), tensors)
        storage.write_tensors(self._checkpoint, tensors, {"state": json.dumps(skeleton), **self._bound})
        self._written = time.monotonic()
        self._pace = self._written - start

    def drop_checkpoint(self) -> None:
        """Delete the state of the members under way, which are all finished."""
        self._checkpoint.unlink(missing_ok=True)

    def add(self, member: Finished) -> None:
        """Write a finished member."""
        weights = weights_file(self.path, member.number)
        weights.parent.mkdir(parents=True, exist_ok=True)
        there = {name: value for name, found in self._first.items() if (value := found()) is not None}
        files = {"weights": write_member(weights, member.model, there, self._checksum)}
        lines = "".join(json.dumps(line) + "\n" for line in member.history).encode()
        files["history"] = hashlib.sha256(lines).hexdigest()
        storage.write_bytes(weights.with_name("history.jsonl"), [lines])
        if member.row is not None:
            bank = bank_file(self.path, member.number)
            bank.parent.mkdir(exist_ok=True)
            files["bank"] = storage.write_tensors(bank, {"outputs": member.row})
        storage.write_json(weights.with_name("member.json"), {**member.facts, **self._bound, "files": files})
        if member.number == 1:
            self._remember(member.model, files["weights"])
        self.finished = member.number

    def _remember(self, first: nn.Module, checksum: str) -> None:
        """Note what the first member is made of, and the checksum of its file."""
        self._first = {name: weakref.ref(value) for name, value in first.state_dict(keep_vars=True).items()}
        self._checksum = checksum

    def facts(self) -> list[dict[str, Any]]:
        """Return what became of the finished members."""
        return read_members(self.path)

    def members(self) -> list[nn.Module]:
        """Return all finished members; weights that were trained here stay on disk until they are used."""
        # Members that came from elsewhere may be of another kind than make_model's, so they are not read back.
        checksums = [facts["files"]["weights"] for facts in self.facts()]
        here = load_members(self.path, checksums, self._make_model, self._device, start=len(self._earlier))
        return [*self._earlier[: self.finished], *here]  # a kill may have come before all of them were there


@contextmanager
def open_run_folder(
    path: Path,
    configuration: dict[str, Any],
    information: dict[str, Any],
    size: int,
    make_model: ModelFactory,
    device: torch.device,
    earlier: Iterable[nn.Module] = (),
    one_network: bool = False,
) -> Iterator[RunFolder]:
    """Begin, resume or extend a run in a folder, which is locked meanwhile, or refuse it and change nothing."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"run_dir must be a folder, but {path} is a file")
    path.mkdir(parents=True, exist_ok=True)
    foreign = sorted(item.name for item in path.iterdir() if not _LEFT_BY_A_KILL.fullmatch(item.name))
    if foreign and "run.json" not in foreign:
        raise FolderError(f"run_dir {path} holds {foreign[0]!r} and no run.json; name a new or an empty folder")
    storage.check_contained(path)
    lock = FileLock(path / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUseError(
            f"{path} is in use: another process is training there. Wait until it ends, or name another run_dir"
        ) from None
    new = not (path / "run.json").exists()
    try:
        for place in (path, path / "bank", *path.glob("members/*")):
            storage.clear_leftovers(place)
        _begin_or_go_on(path, configuration, information, size, one_network)
        folder = RunFolder(path, make_model, device, earlier)
        _verify(path)
        folder.checkpoint()  # refuses a damaged one now rather than later, and removes one that outlived its member
        yield folder
    except BaseException:
        if new and not read_members(path) and not (path / "checkpoint.safetensors").exists():
            (path / "run.json").unlink(missing_ok=True)  # so that what was wrong can be asked for rightly here
        raise
    finally:
        lock.release()


def _begin_or_go_on(
    path: Path, configuration: dict[str, Any], information: dict[str, Any], size: int, one_network: bool
) -> None:
    """Write run.json for a new run or a larger size, after holding the request against what is there."""
    file = path / "run.json"
    if not file.exists():
        new = {"format": storage.FORMAT, "id": uuid.uuid4().hex, "size": size, "configuration": configuration}
        storage.write_json(file, {**new, **information})
        return
    run = read_run(path)
    if one_network and size != run["size"]:
        raise FolderError(
            f"{file} is of {run['size']} members that come out of one training; none can be added or left out. Train "
            f"size={size} in another run_dir"
        )
    if differ := differences(run["configuration"], configuration):
        listed = "; ".join(f"{where} is {_short(there)} there and {_short(here)} here" for where, there, here in differ)
        raise FolderError(
            f"{file} is of another configuration: {listed}. Name another run_dir, or ask for what was asked then; "
            "nothing was changed"
        )
    done, planned = len(read_members(path)), run["size"]
    if run["format"] == 1 and done < planned and run["configuration"].get("validation"):
        raise FolderError(
            f"{file} was begun by version 0.1, which kept the first of equally good epochs. This version keeps "
            "the last, and members of one run would be selected by two rules. Finish it with version 0.1, or start "
            "anew in another run_dir; nothing was changed"
        )
    if size == planned:
        return
    if done < planned:
        raise FolderError(
            f"{path} is a run of size {planned} with {done} members done; finish it first with size={planned}, "
            f"then ask for size={size}"
        )
    if size < planned:
        raise FolderError(
            f"{path} is a finished run of size {planned}; it cannot become one of size {size}. Take "
            f"ge.load_run(...).ensemble[:{size}], or train in another run_dir"
        )
    run.pop("members_at_once", None)  # of those that are there; it is decided anew for the others
    grown = {"format": storage.FORMAT, "size": size, "extended_from": [*run.get("extended_from", []), planned]}
    storage.write_json(file, {**run, **grown})


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
