"""The threshold of an ensemble, found from in-domain inputs that it was not trained on, and kept beside its weights.

Of a run these are the images that it held out. Each member's best epoch was chosen on them as well, so on new images
the rate of false alarms may be a little above what was asked for. The file belongs to the weights that it was found
for: a run that was extended must be calibrated anew.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles import storage
from greedy_ensembles.benchmark.held_out import held_out, training_images
from greedy_ensembles.screening.form import Form, form_of, trained_on
from greedy_ensembles.screening.inputs import Inputs
from greedy_ensembles.screening.subject import Subject
from greedy_ensembles.screening.threshold import check_rate, threshold_at
from greedy_ensembles.screening.verdicts import judge

FILE = "calibration.json"
_FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """From which mutual information on an input is flagged, and where that comes from."""

    threshold: float  #: in nats
    fpr: float  #: the share of in-domain inputs that may be flagged
    inputs: int  #: how many in-domain inputs it was found from
    source: str  #: what they were
    weights: str  #: of the ensemble, `Subject.weights`
    form: Form


def calibrate(
    subject: Subject, fpr: float = 0.05, inputs: Inputs | None = None, root: str | Path | None = None
) -> Calibration:
    """Find the threshold of an ensemble from `inputs`, by default the images that a run held out, and write it down."""
    if inputs is None:
        values, form, source = _held_out(subject, root)
    else:
        values, form, source = inputs.values, form_of(subject, root), "in-domain inputs of your own"
        if values.dtype == np.uint8 and values.ndim == 4:
            form = Form.of_images(values, form.classes)
    if len(subject.ensemble) < 2:
        raise ValueError(
            f"{subject.folder} has one member, whose mutual information is 0 on every input; flags need two members"
        )
    check_rate(fpr, len(values))  # before the members are put to work
    scores = judge(subject.ensemble, values).epistemic
    found = Calibration(threshold_at(scores, fpr), fpr, len(values), source, subject.weights, form)
    storage.write_json(subject.folder / FILE, {"format": _FORMAT, **asdict(found)})
    return found


def _held_out(subject: Subject, root: str | Path | None) -> tuple[np.ndarray, Form, str]:
    facts = subject.facts
    if facts is None or trained_on(subject) is None:
        raise ValueError(
            f"{subject.folder} does not name a data set that it was trained on; name in-domain inputs that it was not "
            "trained on with --on"
        )
    if not facts.configuration["validation"]:
        raise ValueError(
            f"{subject.folder} held out no validation images; name in-domain images that it was not trained on "
            "with --on"
        )
    images = held_out(facts, training_images(facts, root))
    return images.images, Form.of_images(images.images, images.classes), images.name


def read_calibration(subject: Subject) -> Calibration | None:
    """Return the calibration beside the weights; None where there is none, or it is of other weights."""
    file = subject.folder / FILE
    if not file.exists():
        return None
    content = storage.read_json(file)
    if content.pop("format", None) != _FORMAT:
        raise storage.FolderError(f"{file} has another format than {_FORMAT}; delete it and calibrate anew")
    try:
        form = content.pop("form")
        found = Calibration(**content, form=_form(form))
        proper = all(isinstance(value, float) for value in (found.threshold, found.fpr))
    except (KeyError, TypeError, ValueError):
        proper = False
    storage.require(proper, file, "it is no calibration of ours")
    return found if found.weights == subject.weights else None


def _form(content: dict[str, Any]) -> Form:
    shape, classes = content["shape"], content["classes"]
    if shape is not None:
        channels, height, width = (int(side) for side in shape)
        shape = (channels, height, width)
    return Form(shape, None if classes is None else tuple(str(name) for name in classes))
