"""Switches for TF32 of both generations, each case in a process of its own: some cannot be unset."""

import subprocess
import sys

import pytest
import torch

from greedy_ensembles.engines import tf32

needs_newer = pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has no switches of the newer kind"
)
PRELUDE = """
import torch, greedy_ensembles as ge
from greedy_ensembles.engines import tf32
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


def run(code):
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


CASE = """
exec(way)
before = [read(text) for text in OLDER + NEWER]
for allowed in (True, False, True):
    with tf32.set_inside(allowed):
        inside = [eval(text) == 'tf32' for text in NEWER] or [b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32]
        print(way, tf32.allowed_in_convolutions() == allowed, set(inside) == {allowed}, sep="|", flush=True)
    print(way, before == [read(text) for text in OLDER + NEWER], sep="|", flush=True)
"""


def test_it_is_as_asked_inside_and_as_it_was_outside():
    ways = OLD_WAYS + (NEW_WAYS if hasattr(torch.backends.cudnn, "conv") else [])
    # Each in a process of its own, which need not import PyTorch again.
    found = run(
        f"import os\nfor way in {ways!r}:\n"
        f"    if os.fork() == 0:\n        exec({CASE!r})\n        os._exit(0)\n    os.wait()\n"
    )
    assert found.splitlines() == [f"{way}|{answer}" for way in ways for answer in ("True|True", "True") * 3]


@needs_newer
def test_a_general_switch_reaches_products_afterwards():
    found = run("with tf32.set_inside(False): pass\nb.fp32_precision = 'tf32'\nprint(b.cuda.matmul.fp32_precision)")
    assert found.split() == ["tf32"]


def test_the_block_is_left_by_an_error_too():
    before = tf32.settings()
    with pytest.raises(KeyError), tf32.set_inside(not tf32.allowed_in_convolutions()):
        raise KeyError
    assert tf32.settings() == before


@needs_newer
def test_who_set_the_newer_kind_trains_and_predicts():
    found = run(
        "b.cudnn.conv.fp32_precision = 'ieee'; b.cuda.matmul.fp32_precision = 'tf32'\n"
        "from greedy_ensembles.engines.prediction import switches\n"
        "data = torch.randn(40, 2), torch.arange(40) % 2\n"
        "options = {'size': 2, 'strength': 1.0, 'recipe': ge.Recipe(epochs=1), 'device': 'cpu', 'progress': False}\n"
        "ensemble = ge.fit(lambda: ge.models.MLP(2, (4,)), data, **options)\n"
        "print(len(ensemble.predict_proba(data[0])), len(switches()) > 1)"
    )
    assert found.split() == ["2", "True"]
