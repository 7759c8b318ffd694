"""The ensemble: what training returns. It predicts, says how sure it is, and can be saved and loaded."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from greedy_ensembles import export, metrics, storage
from greedy_ensembles.card import model_card
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.engines.prediction import (
    WORTH_CAPTURING,
    CapturedPrediction,
    Statement,
    can_capture,
    log_probabilities,
    probabilities,
)
from greedy_ensembles.inputs import (
    InputForm,
    Normalize,
    admit,
    as_inputs,
    as_normalize,
    as_tensor,
    batches_of,
    device_of,
    dtype_of,
)
from greedy_ensembles.storage import FolderError

ModelFactory = Callable[[], nn.Module]

Array = TypeVar("Array", Tensor, np.ndarray)


class Uncertainty(NamedTuple, Generic[Array]):
    """Uncertainty of n predictions in nats, each of shape (n,): total = epistemic + aleatoric."""

    epistemic: Array  #: mutual information: members disagree; high far from the training data
    aleatoric: Array  #: expected entropy: members agree that the label is noisy
    total: Array  #: predictive entropy

    @classmethod
    def of(cls, probs: Array) -> "Uncertainty[Array]":
        """Return the uncertainty of members' probabilities, (members, n, classes), as the kind of array they are."""
        return Uncertainty(
            metrics.mutual_information(probs), metrics.expected_entropy(probs), metrics.predictive_entropy(probs)
        )


class Ensemble:
    """Classifiers whose predictions are averaged and compared.

    ``len(e)`` members; ``e[k]`` is one of them, an ``nn.Module`` in eval mode that takes inputs as the model saw them
    in training (after `normalize`); ``e[:3]`` is an ensemble of the first three.
    """

    inputs: InputForm | None = None  #: what one input looks like, if that is known

    def __init__(
        self,
        members: Iterable[nn.Module],
        normalize: Sequence[float | Sequence[float]] | None = None,
        *,
        inputs: InputForm | None = None,
        notes: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(members, nn.Module):
            raise TypeError("members must be a list of models, not one model")
        self._members = [member.eval() for member in members]
        self.normalize: Normalize | None = as_normalize(normalize)
        self.notes = dict(notes or {})  #: what the training says of itself on the card that `save` writes
        self.inputs = inputs
        self._captured: CapturedPrediction | None = None
        self._can_be_captured = True
        if not self._members:
            raise ValueError("an ensemble needs at least one member")

    @classmethod
    def from_members(
        cls, modules: Iterable[nn.Module], normalize: Sequence[float | Sequence[float]] | None = None
    ) -> "Ensemble":
        """Make an ensemble of models that you already have; they are put into eval mode, not copied."""
        return cls(modules, normalize)

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> "Ensemble": ...
    def __getitem__(self, index: int | slice) -> "nn.Module | Ensemble":
        if isinstance(index, slice):
            return self._part(self._members[index])
        return self._members[index]

    def _part(self, members: list[nn.Module]) -> "Ensemble":
        notes = dict(self.notes)
        if notes and len(members) < len(self):
            notes["Part"] = f"{len(members)} of the members of which this is said"
        return Ensemble(members, self.normalize, inputs=self.inputs, notes=notes)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._members)

    def __repr__(self) -> str:
        kinds = ", ".join(sorted({type(member).__name__ for member in self}))
        return f"Ensemble({len(self)} x {kinds} on {device_of(self[0])})"

    def to(self, device: torch.device | str) -> "Ensemble":
        """Move all members to a device, and return the ensemble."""
        for member in self:
            member.to(device)
        return self

    def predict_proba(self, x: Any, batch_size: int = 1024) -> Tensor:
        """Return every member's class probabilities, (members, n, classes).

        Args:
            x: what `ge.fit` takes, labels or not: a tensor or array of inputs, a list of rows, a data frame, an image
                set, a Dataset or a DataLoader (of inputs, or of tuples that begin with them). Inputs of another
                shape, type or scale than those that the ensemble was trained on are refused.
            batch_size: how many inputs a member sees at once; a DataLoader has its own.

        The result lies on the device of x where x is a tensor, otherwise on the CPU. On a GPU torch's own switches
        decide whether products round to TF32 (in convolutions they do by default); `ge.benchmark` uses full single
        precision unless it is told otherwise. What a member says of an input must not depend on others in the batch.
        On a GPU members may be recorded: weights are read as they are then, other attributes as they were.
        """
        return self._predict(probabilities, x, batch_size)

    def predict_log_proba(self, x: Any, batch_size: int = 1024) -> Tensor:
        """Return the logarithms of `predict_proba`, also of probabilities that are too small for single precision."""
        return self._predict(log_probabilities, x, batch_size)

    def _predict(self, say: Statement, x: Any, batch_size: int) -> Tensor:
        target = x.device if isinstance(x, Tensor) else torch.device("cpu")
        x = as_inputs(x.inputs if isinstance(x, LabelledSet) else x)
        with torch.no_grad():
            if isinstance(x, Tensor):  # at once: a GPU is not to wait for the host at every batch
                x = self._admit(x, 0)
            # One pass over the batches, all members on each: a loader that shuffles shows all of them the same.
            batches = batches_of(x, batch_size, None if isinstance(x, Tensor) else self._admit)
            captured = self._capture(say, x, batch_size)
            if captured is not None:
                return torch.cat(list(captured.over(batches, target)), dim=1)
            placed = [(member, device_of(member)) for member in self]
            return torch.cat([self._of_members(say, placed, batch, target) for batch in batches], dim=1)

    def _admit(self, batch: Tensor, first: int) -> Tensor:
        return admit(batch, first, self.inputs, self.normalize, dtype_of(self[0]))

    def _of_members(
        self, say: Statement, placed: list[tuple[nn.Module, torch.device]], batch: Tensor, target: torch.device
    ) -> Tensor:
        inputs = {device: batch.to(device) for device in {device for _, device in placed}}
        every = [say(member, inputs[device], self.normalize, torch.preserve_format) for member, device in placed]
        return torch.stack([one if one.device == target else one.to(target) for one in every])

    def _capture(self, say: Statement, x: Any, batch_size: int) -> CapturedPrediction | None:
        """Return a recording of all members on a batch: the one there is, or a new one if that is possible and pays."""
        if not (self._can_be_captured and isinstance(x, Tensor | np.ndarray)) or len(x) < batch_size:
            return None
        if not can_capture(self._members):
            return None
        batch = next(batches_of(x, batch_size, self._admit))
        if self._captured is not None and self._captured.fits(say, self._members, self.normalize, batch):
            return self._captured
        if len(x) < WORTH_CAPTURING * batch_size:
            return None
        self._captured = None  # first, since its memory may be needed
        try:
            self._captured = CapturedPrediction(say, self._members, self.normalize, batch)
        except Exception:  # of any kind: members may be anyone's, and a loop over them does as well
            self._can_be_captured = False
        return self._captured

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_captured": None}  # a recording belongs to one process and one place in memory

    def uncertainty(self, x: Any, batch_size: int = 1024) -> Uncertainty[Tensor]:
        """Return how uncertain the ensemble is about each of n inputs, and why."""
        return Uncertainty.of(self.predict_proba(x, batch_size))

    def export_onnx(self, path: str | Path, example: Any = None) -> None:
        """Write the ensemble as one ONNX graph, for any length of batch; see `greedy_ensembles.export`.

        Args:
            path: the file to write, or to replace. Weights of more than 2 GB go into a second file beside it.
            example: a batch of at least one input as `predict_proba` takes it, a tensor or array: the graph takes
                inputs of its shape and type. None: those that the ensemble was trained on.

        The graph's input is ``x``, its outputs are ``probabilities`` (the members' mean), ``epistemic``, ``aleatoric``
        and ``total``. This needs the extra ``greedy-ensembles[onnx]``.
        """
        export.export_onnx(self, self.normalize, path, self._example(example))

    def export_torch(self, path: str | Path, example: Any = None) -> None:
        """Write the same graph as `export_onnx` as a program (.pt2) for PyTorch alone.

        ``torch.export.load(path).module()`` returns a callable from a batch to a dict of the outputs.
        """
        export.export_torch(self, self.normalize, path, self._example(example))

    def _example(self, given: Any) -> Any:
        if given is not None:
            return given if self.inputs is None else self.inputs.admit(as_tensor(given))
        if self.inputs is None:
            raise ValueError("example must be a batch of inputs: what this ensemble was trained on is not known")
        return self.inputs.example()

    def save(self, folder: str | Path, notes: Mapping[str, object] | None = None) -> None:
        """Write the ensemble to a new folder: all of it, or nothing.

        Beside weights and checksums the folder gets a README.md that says what it holds and how to load it, and of an
        ensemble that was trained here, on what and how; `notes` are lines of your own in it, by title, such as
        ``{"Test accuracy": 0.934}``.
        """
        if notes is not None and not isinstance(notes, Mapping):
            raise TypeError(f"notes must be a dict from titles to values, got {type(notes).__name__}")
        folder = Path(folder).expanduser().absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FolderError(f"{folder} exists and is not an empty folder; nothing was written. Name another one")
        folder.parent.mkdir(parents=True, exist_ok=True)
        storage.clear_leftovers(folder.parent, folder.name)
        unfinished = storage.temporary_path(folder)
        try:
            told = {**self.notes, **(notes or {})}
            self._write(unfinished, {str(title): str(value) for title, value in told.items()})
            unfinished.replace(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _write(self, folder: Path, notes: Mapping[str, str]) -> None:
        checksums = []
        for number, member in enumerate(self, start=1):
            weights = weights_file(folder, number)
            weights.parent.mkdir(parents=True)
            checksums.append(storage.write_tensors(weights, member.state_dict()))
        content = {
            "format": storage.FORMAT,
            "members": checksums,
            "normalize": self.normalize,
            "inputs": None if self.inputs is None else self.inputs.to_json(),
            "notes": notes,
        }
        storage.write_json(folder / "ensemble.json", content)
        storage.write_bytes(folder / "README.md", [model_card(self, self.normalize, notes).encode()])

    @classmethod
    def load(cls, folder: str | Path, make_model: ModelFactory, device: torch.device | str = "cpu") -> "Ensemble":
        """Read an ensemble that `save` wrote. The folder holds numbers only: nothing in it is executed.

        `make_model` is called once for each member, in their order; members of several kinds can be loaded by one that
        returns them in turn.
        """
        folder = Path(folder).expanduser()
        if not (folder / "ensemble.json").exists():
            hint = "a run: read it with ge.load_run" if (folder / "run.json").exists() else "no saved ensemble"
            raise FolderError(f"{folder} holds {hint} (there is no ensemble.json in it)")
        storage.check_contained(folder)
        content = _read_description(folder / "ensemble.json")
        members = [
            load_member(weights_file(folder, number), checksum, make_model, device)
            for number, checksum in enumerate(content.members, start=1)
        ]
        return cls(members, content.normalize, inputs=content.inputs, notes=content.notes)


class _Description(NamedTuple):
    """What ensemble.json holds."""

    members: list[str]  #: their checksums
    normalize: Normalize | None
    inputs: InputForm | None
    notes: dict[str, str]


def _read_description(path: Path) -> _Description:
    content = storage.read_json(path)
    check_format(path, content)
    checksums: Any = content.get("members")
    proper = (
        isinstance(checksums, list) and len(checksums) > 0 and all(isinstance(checksum, str) for checksum in checksums)
    )
    storage.require(proper, path, "its 'members' are not a list of checksums")
    notes: Any = content.get("notes", {})  # which older folders do not have
    proper = isinstance(notes, dict) and all(isinstance(value, str) for value in notes.values())
    storage.require(proper, path, "its 'notes' are not texts by title")
    return _Description(checksums, read_normalize(path, content.get("normalize")), read_inputs(path, content), notes)


def read_inputs(path: Path, content: Mapping[str, Any]) -> InputForm | None:
    """Return what a file says of inputs, if it does, or refuse the file."""
    value = content.get("inputs")  # which older folders do not have
    try:
        return None if value is None else InputForm.from_json(value)
    except ValueError as error:
        raise storage.damaged(path, str(error)) from None


def read_normalize(path: Path, value: Any) -> Normalize | None:
    """Return a normalisation that a file holds, or refuse the file."""
    try:
        return as_normalize(value)
    except ValueError as error:
        raise storage.damaged(path, str(error)) from None


def weights_file(folder: Path, number: int) -> Path:
    """Return where member `number`, counted from 1, has its weights in a saved ensemble or a run folder."""
    return folder / "members" / f"{number:02d}" / "weights.safetensors"


def check_format(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a folder that a later version of this package wrote."""
    found = content.get("format")
    if type(found) is not int or not 1 <= found <= storage.FORMAT:  # true and 1.0 would pass for 1
        raise FolderError(f"{path} has format {found!r}; this version reads formats 1 to {storage.FORMAT}")


def load_member(path: Path, checksum: str, make_model: ModelFactory, device: torch.device | str = "cpu") -> nn.Module:
    """Build a model and give it the weights of a file, which must have this checksum."""
    weights, _ = storage.read_tensors(path, device, checksum)
    model = make_model().to(device)
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if expected != found:
        name = next(n for n in (*expected, *found) if expected.get(n) != found.get(n))
        raise ValueError(
            f"make_model does not fit {path}: {name!r} has shape {expected.get(name, 'none')} in the model "
            f"and {found.get(name, 'none')} in the file"
        )
    for name, value in model.state_dict().items():
        if value.is_floating_point() != weights[name].is_floating_point():
            types = f"{value.dtype} in the model and {weights[name].dtype} in the file"
            raise ValueError(f"make_model does not fit {path}: {name!r} is {types}")
    # Taking the mapped tensors over, rather than copying them, leaves members on disk until they are used;
    # parameters that share storage must go on sharing it, and are copied into.
    tied = len(list(model.parameters())) != len(list(model.named_parameters(remove_duplicate=False)))
    model.load_state_dict(weights, assign=not tied)
    return model.eval()
