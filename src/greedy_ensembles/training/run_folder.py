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
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from greedy_ensembles import storage
from greedy_ensembles.ensemble import Ensemble, ModelFactory, check_format, load_member, read_normalize, weights_file
from greedy_ensembles.inputs import Normalize
from greedy_ensembles.storage import FolderError, damaged
from greedy_ensembles.training.configuration import describe, differences
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.store import Finished, History
from greedy_ensembles.training.tree import flatten, unflatten

#: Seconds up to which every epoch is saved. What takes longer (many large networks at once) is saved when as many times
#: of its own duration have passed, so that it takes a tenth of all time at most; a kill then costs that much work.
_BRIEF, _PATIENCE = 1.0, 10
_LEFT_BY_A_KILL = {"lock", "run.json.tmp"}  # at the very start, before there is a run


class RunFolder:
    """A store on disk, open for training; make one with `open_run_folder`."""

    def __init__(
        self, path: Path, make_model: ModelFactory, device: torch.device, earlier: Iterable[nn.Module] = ()
    ) -> None:
        self.path, self._make_model, self._device, self._earlier = path, make_model, device, list(earlier)
        self._checkpoint = path / "checkpoint.safetensors"
        self._pace = self._written = 0.0  # seconds that the last checkpoint took, and when it was there
        self.finished = len(read_members(path))

    @property
    def members_at_once(self) -> int | None:
        """How many members train together, if that was decided before."""
        return read_run(self.path).get("members_at_once")

    def keep_members_at_once(self, count: int) -> None:
        """Keep how many members train together."""
        storage.write_json(self.path / "run.json", {**read_run(self.path), "members_at_once": count})

    def rows(self) -> Iterator[Tensor]:
        """Return the bank rows of the finished members, one at a time."""
        for number, facts in enumerate(read_members(self.path), start=1):
            file, seal = bank_file(self.path, number), facts["files"]["bank"]
            yield storage.read_tensors(file, self._device, seal)[0]["outputs"]

    def checkpoint(self) -> dict[str, Any] | None:
        """Return the state of the members under way, if one was saved."""
        if not self._checkpoint.exists():
            return None
        remedy = f"Delete it to train member {self.finished + 1} again from its first epoch"
        tensors, metadata = storage.read_tensors(self._checkpoint, remedy=remedy)
        # Cloned, since what was read is mapped from a file that the next epoch replaces.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        try:
            state: dict[str, Any] = unflatten(json.loads(metadata["state"]), tensors)
            numbers = [member["number"] for member in state["members"]]
            proper = bool(numbers) and all(isinstance(number, int) for number in numbers)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            proper = False
        if not proper:
            raise damaged(self._checkpoint, "it holds no state of members", remedy)
        if numbers[-1] <= self.finished:  # a kill came between the end of these members and this
            self._checkpoint.unlink()
            return None
        if numbers[0] > self.finished + 1:
            missing = weights_file(self.path, self.finished + 1).with_name("member.json")
            raise damaged(missing, f"it is missing while {self._checkpoint.name} is of member {numbers[0]}")
        return state

    def save_checkpoint(self, state: Callable[[], dict[str, Any]], last: bool) -> None:
        """Replace the state of the members under way, unless that would take more time than a kill could cost."""
        start = time.monotonic()
        if self._pace > _BRIEF and start - self._written < _PATIENCE * self._pace and not last:
            return
        tensors: dict[str, Tensor] = {}
        skeleton = flatten(state(), tensors)
        storage.write_tensors(self._checkpoint, tensors, {"state": json.dumps(skeleton)})
        self._written = time.monotonic()
        self._pace = self._written - start

    def drop_checkpoint(self) -> None:
        """Delete the state of the members under way, which are all finished."""
        self._checkpoint.unlink(missing_ok=True)

    def add(self, member: Finished) -> None:
        """Write a finished member."""
        weights = weights_file(self.path, member.number)
        weights.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(line) + "\n" for line in member.history).encode()
        files = {"weights": storage.write_tensors(weights, member.model.state_dict()), "history": _sha256(lines)}
        storage.write_bytes(weights.with_name("history.jsonl"), [lines])
        if member.row is not None:
            bank = bank_file(self.path, member.number)
            bank.parent.mkdir(exist_ok=True)
            files["bank"] = storage.write_tensors(bank, {"outputs": member.row})
        storage.write_json(weights.with_name("member.json"), {**member.facts, "files": files})
        self.finished = member.number

    def facts(self) -> list[dict[str, Any]]:
        """Return what became of the finished members."""
        return read_members(self.path)

    def ensemble(self, normalize: Normalize | None) -> Ensemble:
        """Return all finished members; weights that were trained here stay on disk until they are used."""
        return Ensemble([*self._earlier, *self._trained_here()], normalize)

    def _trained_here(self) -> list[nn.Module]:
        # Members that came from elsewhere may be of another kind than make_model's, so they are not read back.
        return list(read_weights(self.path, self._make_model, self._device, start=len(self._earlier)))


@contextmanager
def open_run_folder(
    path: Path,
    configuration: dict[str, Any],
    information: dict[str, Any],
    size: int,
    make_model: ModelFactory,
    device: torch.device,
    earlier: Iterable[nn.Module] = (),
) -> Iterator[RunFolder]:
    """Begin, resume or extend a run in a folder, which is locked meanwhile, or refuse it and change nothing."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"run_dir must be a folder, but {path} is a file")
    if path.is_dir() and not (path / "run.json").exists():
        foreign = sorted(item.name for item in path.iterdir() if item.name not in _LEFT_BY_A_KILL)
        if foreign:
            raise FolderError(f"run_dir {path} holds {foreign[0]!r} and no run.json; name a new or an empty folder")
    path.mkdir(parents=True, exist_ok=True)
    storage.check_contained(path)
    lock = FileLock(path / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderError(
            f"{path} is in use: another process is training there. Wait until it ends, or name another run_dir"
        ) from None
    try:
        _begin_or_go_on(path, configuration, information, size)
        folder = RunFolder(path, make_model, device, earlier)
        verify_members(path)
        folder.checkpoint()  # refuses a damaged one now rather than later, and removes one that outlived its member
        yield folder
    finally:
        lock.release()


def _begin_or_go_on(path: Path, configuration: dict[str, Any], information: dict[str, Any], size: int) -> None:
    """Write run.json for a new run or a larger size, after holding the request against what is there."""
    file = path / "run.json"
    if not file.exists():
        content = {"format": storage.FORMAT, "size": size, "configuration": configuration, **information}
        storage.write_json(file, content)
        return
    run = read_run(path)
    # A field of the recipe that the folder's version did not have yet counts as its default, which trains as before.
    recipe = {**describe(Recipe()), **run["configuration"]["recipe"]}
    differ = differences({**run["configuration"], "recipe": recipe}, configuration)
    if differ:
        listed = "; ".join(
            f"{where} is {_short(there)} there and {_short(asked)} here" for where, there, asked in differ
        )
        raise FolderError(
            f"{file} is of another configuration: {listed}. Name another run_dir, or ask for what was asked then; "
            "nothing was changed"
        )
    done, planned = len(read_members(path)), run["size"]
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
    storage.write_json(file, {**run, "size": size, "extended_from": [*run.get("extended_from", []), planned]})


def read_run(path: Path) -> dict[str, Any]:
    """Return what run.json says."""
    file = path / "run.json"
    run = storage.read_json(file)
    check_format(file, run)
    size: Any = run.get("size")
    configuration: Any = run.get("configuration")
    storage.require(type(size) is int and size > 0, file, "its 'size' is not a whole number above 0")
    proper = isinstance(configuration, dict) and isinstance(configuration.get("recipe"), dict)
    storage.require(proper, file, "its 'configuration' has no 'recipe'")
    storage.require(isinstance(run.get("extended_from", []), list), file, "its 'extended_from' is not a list")
    at_once: Any = run.get("members_at_once", 1)  # which is not there before the first epoch, nor in older folders
    storage.require(type(at_once) is int and at_once > 0, file, "its 'members_at_once' is not a whole number above 0")
    read_normalize(file, configuration["recipe"].get("normalize"))
    return run


def read_members(path: Path) -> list[dict[str, Any]]:
    """Return what the member.json files of the finished members say, in order."""
    members: list[dict[str, Any]] = []
    while (file := weights_file(path, len(members) + 1).with_name("member.json")).exists():
        facts = storage.read_json(file)
        files: Any = facts.get("files")
        proper = isinstance(files, dict) and {"weights", "history"} <= files.keys()
        proper = proper and all(isinstance(seal, str) for seal in files.values())
        storage.require(proper, file, "its 'files' are not the checksums of weights and history")
        members.append(facts)
    later = sorted((path / "members").glob("*/member.json"))[len(members) :]
    if later:
        raise damaged(file, f"it is missing while {later[0]} exists")
    return members


def verify_members(path: Path) -> None:
    """Check every file of the finished members against its checksum."""
    for number, facts in enumerate(read_members(path), start=1):
        weights = weights_file(path, number)
        storage.read_tensors(weights, seal=facts["files"]["weights"])
        read_history(weights.with_name("history.jsonl"), facts["files"]["history"])
        if "bank" in facts["files"]:
            storage.read_tensors(bank_file(path, number), seal=facts["files"]["bank"])


def read_history(file: Path, checksum: str) -> History:
    """Return the epochs of a finished member."""
    lines = file.read_bytes() if file.exists() else b""
    if _sha256(lines) != checksum:
        raise damaged(file, "its content does not match its checksum" if file.exists() else "it is missing")
    try:
        return [json.loads(line) for line in lines.splitlines()]
    except (ValueError, RecursionError):
        raise damaged(file, "it is not JSON, line by line") from None


def read_weights(
    path: Path, make_model: ModelFactory, device: torch.device | str, start: int = 0
) -> Iterator[nn.Module]:
    """Return the finished members of a run, without the first `start` of them."""
    for number, facts in enumerate(read_members(path)[start:], start=start + 1):
        yield load_member(weights_file(path, number), facts["files"]["weights"], make_model, device)


def bank_file(path: Path, number: int) -> Path:
    """Return where member `number`, counted from 1, has its outputs on the p* set."""
    return path / "bank" / f"{number:02d}.safetensors"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
