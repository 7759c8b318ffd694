"""The ensemble: what training returns. It predicts, says how sure it is, and can be saved and loaded."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from greedy_ensembles import export, flags, saving, storage
from greedy_ensembles.checks import as_all, as_path, check_choice, check_count, check_factory, check_kind
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.engines import prediction
from greedy_ensembles.engines.execution import as_device
from greedy_ensembles.engines.prediction import CapturedPrediction, Statement
from greedy_ensembles.forms import Form, admit, check_columns, check_form, example_of
from greedy_ensembles.inputs import Inputs, Normalize, as_inputs, as_normalize, batches_of, device_of, dtype_of, entries
from greedy_ensembles.labels import TARGETS
from greedy_ensembles.metrics.uncertainty import Uncertainty
from greedy_ensembles.storage import FolderError

ModelFactory = Callable[[], nn.Module]
Result = TypeVar("Result")


class Ensemble:
    """Classifiers whose predictions are averaged and compared.

    ``len(e)`` members; ``e[k]`` is one of them, an ``nn.Module`` in eval mode that takes inputs as the model saw them
    in training (after `normalize`); ``e[:3]`` is an ensemble of the first three.

    Args:
        members: the models; they are put into eval mode, not copied.
        normalize: mean and standard deviation that are taken out of inputs before members see them.
        inputs: what one input is like, if known; other inputs are refused.
        notes: what the training says of itself, by title, for the card that `save` writes.
        targets: what an input has: one of several "classes", or any of several "labels".
    """

    calibration: flags.Calibration | None = None  #: what `calibrate` found; a part of the ensemble has none
    run: Mapping[str, Any] | None = None  #: what is known of the run that it was read from; `save` keeps it
    held_out: Path | None = None  #: the file of what that run held out, if it did; `save` copies it

    def __init__(
        self,
        members: Iterable[nn.Module],
        normalize: Sequence[float | Sequence[float]] | None = None,
        *,
        inputs: Form | None = None,
        notes: Mapping[str, object] | None = None,
        targets: str = "classes",
    ) -> None:
        check_choice("targets", targets, TARGETS)
        if isinstance(members, nn.Module):
            raise TypeError("members must be a list of models, not one model")
        check_kind("notes", notes or {}, Mapping, "a dict from titles to values")
        self._members: list[nn.Module] = [member.eval() for member in as_all("members", members, nn.Module, "models")]
        self.normalize: Normalize | None = as_normalize(normalize)
        self.notes = dict(notes or {})
        self.inputs = None if inputs is None else check_form(inputs)
        self.targets = targets
        self._say = prediction.label_probabilities if targets == "labels" else prediction.probabilities
        self._captured: CapturedPrediction | None = None
        self._can_be_captured = True
        if not self._members:
            raise ValueError("members are none: an ensemble needs at least one member")

    @classmethod
    def from_members(
        cls,
        modules: Iterable[nn.Module],
        normalize: Sequence[float | Sequence[float]] | None = None,
        targets: str = "classes",
    ) -> "Ensemble":
        """Make an ensemble of models that you already have; they are put into eval mode, not copied.

        Args:
            modules: the models.
            normalize: mean and standard deviation that are taken out of inputs before members see them.
            targets: what an input has: one of several "classes", or any of several "labels".
        """
        return cls(modules, normalize, targets=targets)

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> "Ensemble": ...
    def __getitem__(self, index: int | slice) -> "nn.Module | Ensemble":
        if not isinstance(index, slice):
            return self._members[index]
        members, notes = self._members[index], dict(self.notes)
        if notes and len(members) < len(self):
            notes["Part"] = f"{len(members)} of the members of which this is said"
        part = Ensemble(members, self.normalize, inputs=self.inputs, notes=notes, targets=self.targets)
        part.run, part.held_out = self.run, self.held_out
        return part

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._members)

    def __repr__(self) -> str:
        kinds = ", ".join(sorted({type(member).__name__ for member in self}))
        return f"Ensemble({len(self)} x {kinds} on {device_of(self[0])})"

    def to(self, device: torch.device | str) -> "Ensemble":
        """Move all members to a device, and return the ensemble."""
        device = as_device(str(device))
        for member in self:
            member.to(device)
        return self

    def predict_proba(self, x: Any, batch_size: int = 1024) -> Tensor:
        """Return every member's class probabilities, (members, n, classes); of labels (members, n, labels, 2).

        Args:
            x: what `ge.fit` takes, labels or not: a tensor or array of inputs, a list of rows, a data frame, a dict or
                tuple of tensors, an image set, a Dataset or a DataLoader (of inputs, or of tuples that begin with
                them). Inputs of another shape, type or scale than those that the ensemble was trained on are refused.
            batch_size: how many inputs a member sees at once; a DataLoader has its own.

        The result lies on the device of x where x is a tensor, otherwise on the CPU. On a GPU torch's own switches
        decide whether products round to TF32 (in convolutions they do by default); `ge.benchmark` uses full single
        precision unless it is told otherwise. What a member says of an input must not depend on others in the batch.
        On a GPU members may be recorded: weights are read as they are then, other attributes as they were.
        """
        return self.apply(self._say, x, batch_size)

    def predict_log_proba(self, x: Any, batch_size: int = 1024) -> Tensor:
        """Return the logarithms of `predict_proba`, also of probabilities that are too small for single precision."""
        of_labels = self.targets == "labels"
        say = prediction.label_log_probabilities if of_labels else prediction.log_probabilities
        return self.apply(say, x, batch_size)

    def apply(self, say: Statement, x: Any, batch_size: int = 1024) -> Tensor:
        """Return what a statement, such as `logits`, makes of every member and of inputs, (members, n, ...).

        Args:
            say: a function of a member and a batch as the member takes it.
            x: as `predict_proba` takes them.
            batch_size: how many inputs a member sees at once.
        """
        return torch.cat(self._of_batches(say, x, batch_size, lambda said: said), dim=1)

    def _of_batches(self, say: Statement, x: Any, batch_size: int, made: Callable[[Tensor], Result]) -> list[Result]:
        """Return what is made of what members say of each batch, (members, rows, classes), one after another."""
        check_count("batch_size", batch_size, least=1)
        several = type(self.inputs) is tuple
        known = None if self.inputs is None else several
        check_columns(x, self.inputs)
        x = as_inputs(x.inputs if isinstance(x, LabelledSet) else x, known, self.targets == "labels")
        place = entries(x)[0][1]
        target = place.device if isinstance(place, Tensor) else torch.device("cpu")
        with torch.no_grad():
            if isinstance(x, Tensor):  # at once: a GPU is not to wait for the host at every batch
                (x,) = self._admit(iter([x]))
            # One pass over the batches, all members on each: a loader that shuffles shows all of them the same.
            batches = batches_of(x, batch_size, several)
            batches = batches if isinstance(x, Tensor) else self._admit(batches)
            captured = self._capture(say, x, batch_size)
            if captured is not None:
                return [made(said) for said in captured.over(batches, target)]  # type: ignore[arg-type]
            placed = [(member, device_of(member), dtype_of(member)) for member in self]
            return [made(prediction.of_all(say, placed, batch, self.normalize, target)) for batch in batches]

    def _admit(self, batches: Iterator[Inputs]) -> Iterator[Inputs]:
        return admit(batches, self.inputs, self.normalize, dtype_of(self[0]))

    def _capture(self, say: Statement, x: Any, batch_size: int) -> CapturedPrediction | None:
        """Return a recording of all members on a batch: the one there is, or a new one if that is possible and pays."""
        suits = self._can_be_captured and isinstance(x, Tensor | np.ndarray) and len(x) >= batch_size
        if not suits or not prediction.can_capture(self._members) or not getattr(say, "recordable", True):
            return None
        batch = next(self._admit(batches_of(x, batch_size)))
        assert isinstance(batch, Tensor)
        if self._captured is not None and self._captured.fits(say, self._members, self.normalize, batch):
            return self._captured
        if len(x) < prediction.WORTH_CAPTURING * batch_size:
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

    def calibrate(
        self, x: Any, y: Any = None, fpr: float = 0.05, *, score: str = "epistemic", batch_size: int = 1024
    ) -> flags.Calibration:
        """Learn from in-domain inputs what to flag, and from their labels how far to trust probabilities.

        What is found stays with the ensemble, also when it is saved, loaded or exported. Calibrating again replaces it.

        Args:
            x: in-domain inputs, as `predict_proba` takes them, that members were not trained on.
            y: their class indices, (n,); needed by `predict_set` and `predict_calibrated`, not by `flag`.
            fpr: the share of in-domain inputs that may be flagged; 0.05 needs 19 inputs or more.
            score: what is thresholded, by its name in `uncertainty`. "epistemic", the mutual information, is what
                members are trained to show on unknown inputs; "total" flags ambiguous ones too.
            batch_size: how many inputs a member sees at once.
        """
        flags.check_rate(fpr)
        if y is not None and self.targets == "labels":
            raise ValueError("y must be left out: temperature and sets are for one class an input, not for labels")
        flags.check_score(score, len(self))
        if y is not None:
            flags.check_order(x)

        def both(probs: Tensor) -> tuple[Tensor, Tensor]:
            double = probs.double().cpu()
            return double.mean(dim=0), flags.SCORES[score](double)

        parts = self._of_batches(self._say, x, batch_size, both)
        means, scores = (torch.cat(part) for part in zip(*parts, strict=True))
        self.calibration = flags.Calibration.found(means, scores, y, fpr, score)
        return self.calibration

    def flag(self, x: Any, batch_size: int = 1024) -> Tensor:
        """Return which of n inputs are unlike those that the ensemble knows, bool (n,).

        Of new in-domain inputs at most the share `fpr` of `calibrate` is flagged, on average over calibrations.
        """
        return torch.cat(self._of_batches(self._say, x, batch_size, self._calibrated().flags))

    def predict_set(self, x: Any, alpha: float = 0.1, batch_size: int = 1024) -> Tensor:
        """Return which classes each of n inputs may have, bool (n, classes): conformal sets.

        A set holds the label of a new in-domain input with a probability of at least 1 - alpha, on average over inputs
        and calibrations. It is empty where no class is as probable as the labels of `calibrate` mostly were.

        Args:
            x: as `predict_proba` takes it.
            alpha: the share of labels that sets may miss; 0.1 needs calibration on 9 labels or more.
            batch_size: how many inputs a member sees at once.
        """
        flags.check_rate(alpha, "alpha")
        calibration = self._calibrated(by_labels=True)
        return torch.cat(self._of_batches(self._say, x, batch_size, lambda probs: calibration.sets(probs, alpha)))

    def predict_calibrated(self, x: Any, batch_size: int = 1024) -> Tensor:
        """Return class probabilities (n, classes): the members' mean, at the temperature that `calibrate` found."""
        calibration = self._calibrated(by_labels=True)
        parts = self._of_batches(self._say, x, batch_size, lambda probs: calibration.tempered(probs.mean(dim=0)))
        return torch.cat(parts)

    def _calibrated(self, by_labels: bool = False) -> flags.Calibration:
        """Return what `calibrate` found, or refuse what it has not found, and what it cannot find."""
        if by_labels and self.targets == "labels":
            raise ValueError("sets and temperatures are for one class an input, and this ensemble predicts labels")
        if self.calibration is None:
            raise ValueError("the ensemble is not calibrated: call calibrate(x, y) with inputs that it knows first")
        if by_labels and self.calibration.temperature is None:
            raise ValueError(
                "y was not given to calibrate, and sets and temperatures are found from labels: calibrate(x, y)"
            )
        return self.calibration

    def export_onnx(self, path: str | Path, example: Any = None) -> None:
        """Write the ensemble as one ONNX graph, for any length of batch; see `greedy_ensembles.export`.

        Args:
            path: the file to write, or to replace. Weights of more than 2 GB go into a second file beside it.
            example: a batch of at least one input as `predict_proba` takes it, a tensor or array: the graph takes
                inputs of its shape and type. None: those that the ensemble was trained on.

        The graph's input is ``x``, its outputs are ``probabilities`` (the members' mean), ``epistemic``, ``aleatoric``
        and ``total``. A calibrated ensemble has ``flag`` too, and with labels its ``probabilities`` are those of
        `predict_calibrated`. This needs the extra ``greedy-ensembles[onnx]``.
        """
        export.export_onnx(self._graph(), path, example_of(example, self.inputs))

    def export_torch(self, path: str | Path, example: Any = None) -> None:
        """Write the same graph as `export_onnx` as a program (.pt2) for PyTorch alone.

        ``torch.export.load(path).module()`` returns a callable from a batch to a dict of the outputs.
        """
        export.export_torch(self._graph(), path, example_of(example, self.inputs))

    def _graph(self) -> export.Graph:
        return export.Graph(self, self.normalize, self.calibration, self._say)

    def save(self, folder: str | Path, notes: Mapping[str, object] | None = None) -> None:
        """Write the ensemble to a new folder: all of it, or nothing.

        Beside weights and checksums the folder gets a README.md that says what it holds and how to load it, and of an
        ensemble that was trained here, on what and how; `notes` are lines of your own in it, by title, such as
        ``{"Test accuracy": 0.934}``.
        """
        check_kind("notes", notes or {}, Mapping, "a dict from titles to values")
        folder = as_path("folder", folder).absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FolderError(f"{folder} exists and is not an empty folder; nothing was written. Name another one")
        folder.parent.mkdir(parents=True, exist_ok=True)
        storage.clear_leftovers(folder.parent, folder.name)
        unfinished = storage.temporary_path(folder)
        try:
            checksums = saving.write_members(unfinished, self._members)
            said = {str(title): str(value) for title, value in {**self.notes, **(notes or {})}.items()}
            run = None if self.run is None else {**self.run, "size": len(self)}
            told = saving.Description(checksums, self.normalize, self.inputs, said, run, self.targets)
            saving.write_description(unfinished / "ensemble.json", told)
            if self.calibration is not None:
                self.calibration.write(unfinished, flags.fingerprint(checksums))
            if self.held_out is not None and self.held_out.exists():
                shutil.copyfile(self.held_out, unfinished / saving.HELD_OUT)
            card = saving.model_card(self, self.normalize, said, self.targets)
            storage.write_bytes(unfinished / "README.md", [card.encode()])
            unfinished.replace(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    @classmethod
    def load(cls, folder: str | Path, make_model: ModelFactory, device: torch.device | str = "cpu") -> "Ensemble":
        """Read an ensemble that `save` wrote. The folder holds numbers only: nothing in it is executed.

        Args:
            folder: what `save` wrote.
            make_model: called once for each member, in their order; members of several kinds can be loaded by one that
                returns them in turn.
            device: where members are put.
        """
        folder, device = as_path("folder", folder), as_device(device)
        check_factory("make_model", make_model)
        storage.check_contained(folder)
        if not (folder / "ensemble.json").exists():
            hint = "a run: read it with ge.load_run" if (folder / "run.json").exists() else "no saved ensemble"
            raise FolderError(f"{folder} holds {hint} (there is no ensemble.json in it)")
        return cls._read(folder, saving.read_description(folder / "ensemble.json"), make_model, device)

    @classmethod
    def _read(
        cls, folder: Path, told: saving.Description, make_model: ModelFactory, device: torch.device | str
    ) -> "Ensemble":
        """Return the ensemble of a saved one's folder, or of a run's, of which this is known."""
        members = saving.load_members(folder, told.members, make_model, device)
        ensemble = cls(members, told.normalize, inputs=told.inputs, notes=told.notes, targets=told.targets)
        ensemble.calibration = flags.read_calibration(folder, flags.fingerprint(told.members))
        ensemble.run, ensemble.held_out = told.run, folder / saving.HELD_OUT
        return ensemble
