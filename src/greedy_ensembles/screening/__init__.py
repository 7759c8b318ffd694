"""Inputs from outside: what a trained ensemble says of them, and which of them it should not be trusted on.

`calibrate` finds the mutual information above which an in-domain input is as rare as asked for, and keeps it beside the
weights; `read_inputs` reads pictures and arrays in the form that the ensemble was trained on; `judge` predicts them.
"""

from greedy_ensembles.screening.calibration import Calibration, calibrate, read_calibration
from greedy_ensembles.screening.form import Form, form_of
from greedy_ensembles.screening.inputs import Inputs, read_inputs
from greedy_ensembles.screening.subject import Subject, open_subject
from greedy_ensembles.screening.threshold import threshold_at
from greedy_ensembles.screening.verdicts import Verdicts, judge, to_csv

__all__ = [
    "Calibration",
    "Form",
    "Inputs",
    "Subject",
    "Verdicts",
    "calibrate",
    "form_of",
    "judge",
    "open_subject",
    "read_calibration",
    "read_inputs",
    "threshold_at",
    "to_csv",
]
