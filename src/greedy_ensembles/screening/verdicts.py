"""What an ensemble says of inputs, one line each, and whether it should be believed."""

import csv
import io
from dataclasses import dataclass

import numpy as np

from greedy_ensembles.benchmark.predictions import fitting_batch_size
from greedy_ensembles.checks import check_count
from greedy_ensembles.ensemble import Ensemble, Uncertainty
from greedy_ensembles.inputs import as_tensor

_AT_ONCE = 4096  # inputs whose probabilities, of all members and in double precision, are in memory


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Of n inputs: the class, its probability (the members' mean), and uncertainties in nats, in double precision."""

    classes: np.ndarray
    probability: np.ndarray
    epistemic: np.ndarray  #: mutual information
    aleatoric: np.ndarray
    total: np.ndarray
    outputs: int  #: how many classes there are


def judge(ensemble: Ensemble, values: np.ndarray, batch_size: int | None = None) -> Verdicts:
    """Predict inputs; some at a time, so that memory does not limit how many."""
    batch_size = fitting_batch_size(ensemble) if batch_size is None else batch_size
    check_count("batch_size", batch_size, least=1)
    parts = []
    for start in range(0, len(values), _AT_ONCE):
        batch = as_tensor(values[start : start + _AT_ONCE])
        try:
            probs = ensemble.predict_proba(batch, batch_size).double()
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"the ensemble cannot take inputs of shape {tuple(values.shape[1:])} and type {values.dtype}: {why}"
            ) from error
        if not bool(probs.isfinite().all()):
            raise ArithmeticError("a member's outputs are NaN or infinite")
        mean = probs.mean(dim=0)
        parts.append((mean.argmax(dim=1), mean.amax(dim=1), *Uncertainty.of(probs)))
    classes, probability, epistemic, aleatoric, total = (
        np.concatenate([part.numpy() for part in column]) for column in zip(*parts, strict=True)
    )
    return Verdicts(classes, probability, epistemic, aleatoric, total, outputs=mean.shape[1])


def to_csv(
    names: tuple[str, ...], verdicts: Verdicts, classes: tuple[str, ...] | None = None, threshold: float | None = None
) -> str:
    """Return a table with a line for each input; without a threshold there is no column of flags."""
    known = classes if classes is not None and len(classes) == verdicts.outputs else range(verdicts.outputs)
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    heading = ["input", "class", "probability", "mutual_information", "aleatoric", "total"]
    table.writerow(heading if threshold is None else [*heading, "flagged"])
    for index, name in enumerate(names):
        figures = (verdicts.probability, verdicts.epistemic, verdicts.aleatoric, verdicts.total)
        row = [name, known[int(verdicts.classes[index])], *(f"{values[index]:.6g}" for values in figures)]
        flag = [] if threshold is None else ["yes" if verdicts.epistemic[index] >= threshold else "no"]
        table.writerow([*row, *flag])
    return file.getvalue()
