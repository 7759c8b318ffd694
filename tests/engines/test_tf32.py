"""Switches for TF32 of both generations, each case in a process of its own: some cannot be unset."""

import contextlib
import io
import warnings
from functools import partial

import pytest
import torch

from greedy_ensembles.engines.execution import tf32_in_convolutions, tf32_inside, tf32_settings
from greedy_ensembles.sweeps.executor import Processes

needs_newer = pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has no switches of the newer kind"
)
PRELUDE = """
import torch, greedy_ensembles as ge
from greedy_ensembles.engines.execution import tf32_in_convolutions, tf32_inside, tf32_settings
b = torch.backends

def read(text):
    try:
        return repr(eval(text))
    except RuntimeError:
        return "refused"

OLDER = ["b.cudnn.allow_tf32", "b.cuda.matmul.allow_tf32", "torch.get_float32_matmul_precision()"]
NEWER = ["b.cudnn.conv.fp32_precision", "b.cudnn.rnn.fp32_precision", "b.cuda.matmul.fp32_precision"]
NEWER = NEWER if hasattr(b.cudnn, "conv") else []
"""


OLD_WAYS = [
    "pass",
    "b.cudnn.allow_tf32 = False",
    "b.cuda.matmul.allow_tf32 = True",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
]
NEW_WAYS = [
    "b.cudnn.conv.fp32_precision = 'ieee'",
    "b.cudnn.rnn.fp32_precision = 'ieee'",
    "b.cuda.matmul.fp32_precision = 'tf32'",
    "b.cudnn.conv.fp32_precision = 'ieee'; b.cuda.matmul.fp32_precision = 'tf32'",
    "b.fp32_precision = 'tf32'",
    "b.cudnn.fp32_precision = 'tf32'",
    "b.fp32_precision = 'ieee'",
]
AS_ASKED = """
before = [read(text) for text in OLDER + NEWER]
for allowed in (True, False, True):
    with tf32_inside(allowed):
        inside = [eval(text) == 'tf32' for text in NEWER] or [b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32]
        print(tf32_in_convolutions() == allowed, set(inside) == {allowed})
    print(before == [read(text) for text in OLDER + NEWER])
"""
CASES = {way: f"{way}\n{AS_ASKED}" for way in (*OLD_WAYS, *NEW_WAYS)} | {
    "afterwards": """
with tf32_inside(False):
    pass
b.fp32_precision = 'tf32'
print(b.cuda.matmul.fp32_precision)
""",
    "training": """
b.cudnn.conv.fp32_precision = 'ieee'; b.cuda.matmul.fp32_precision = 'tf32'
from greedy_ensembles.engines.prediction import switches
data = torch.randn(40, 2), torch.arange(40) % 2
options = {'size': 2, 'strength': 1.0, 'recipe': ge.Recipe(epochs=1), 'device': 'cpu', 'progress': False}
ensemble = ge.fit(lambda: ge.models.MLP(2, (4,)), data, **options)
print(len(ensemble.predict_proba(data[0])), len(switches()) > 1)
""",
}


def run_case(code, tell):
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings(action="ignore"):
        exec(PRELUDE + code, {})
    tell(printed.getvalue().splitlines())


@pytest.fixture(scope="module")
def said():
    """What each case prints, in a process of its own."""
    found = {}
    Processes().run({name: partial(run_case, code) for name, code in CASES.items()}, found.__setitem__)
    return found


@pytest.mark.parametrize("way", [*OLD_WAYS, *(pytest.param(way, marks=needs_newer) for way in NEW_WAYS)])
def test_it_is_as_asked_inside_and_as_it_was_outside(said, way):
    assert said[way] == ["True True", "True"] * 3


@needs_newer
def test_a_general_switch_reaches_products_afterwards(said):
    assert said["afterwards"] == ["tf32"]


def test_the_block_is_left_by_an_error_too():
    before = tf32_settings()
    with pytest.raises(KeyError), tf32_inside(not tf32_in_convolutions()):
        raise KeyError
    assert tf32_settings() == before


@needs_newer
def test_who_set_the_newer_kind_trains_and_predicts(said):
    assert said["training"] == ["2 True"]
