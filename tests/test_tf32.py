"""Switches for TF32 of both generations, each in a process of its own: they cannot be unset."""

import subprocess
import sys

import pytest
import torch

from greedy_ensembles import tf32

needs_newer = pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has no switches of the newer kind"
)


def run(code):
    prelude = "import torch, greedy_ensembles as ge; from greedy_ensembles import tf32; b = torch.backends; "
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", prelude + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_older_kind():
    code = (
        "b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32 = {}, {}\n"
        "for allowed in (True, False):\n"
        "    with tf32.set_inside(allowed): print(b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32)\n"
        "print(b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32, tf32.allowed_in_convolutions())"
    )
    for before in (("True", "False"), ("False", "True")):
        assert run(code.format(*before)) == ["True", "True", "False", "False", *before, before[0]]


@needs_newer
@pytest.mark.parametrize(("conv", "matmul"), [("ieee", "tf32"), ("tf32", "ieee"), ("ieee", "ieee")])
def test_the_newer_kind(conv, matmul):
    code = (
        f"b.cudnn.conv.fp32_precision, b.cuda.matmul.fp32_precision = '{conv}', '{matmul}'\n"
        "for allowed in (True, False):\n"
        "    with tf32.set_inside(allowed): print(b.cudnn.conv.fp32_precision, b.cuda.matmul.fp32_precision)\n"
        "print(b.cudnn.conv.fp32_precision, b.cuda.matmul.fp32_precision, tf32.allowed_in_convolutions())"
    )
    inside, outside = run(code)[:4], run(code)[4:]
    assert inside[:2] == ["tf32", "tf32"]
    assert set(inside[2:]) <= {"ieee", "none"}
    assert outside == [conv, matmul, str(conv == "tf32")]


def test_the_block_is_left_by_an_error_too():
    before = tf32.convolutions(), tf32.products()
    with pytest.raises(KeyError), tf32.set_inside(not before[0]):
        raise KeyError
    assert before == (tf32.convolutions(), tf32.products())


@needs_newer
def test_who_set_the_newer_kind_trains_and_predicts():
    code = (
        "b.cudnn.conv.fp32_precision = 'ieee'; b.cuda.matmul.fp32_precision = 'tf32'\n"
        "from greedy_ensembles.captured_prediction import _switches\n"
        "data = torch.randn(40, 2), torch.arange(40) % 2\n"
        "quick = ge.Recipe(epochs=1)\n"
        "options = {'size': 2, 'strength': 1.0, 'recipe': quick, 'device': 'cpu', 'progress': False}\n"
        "ensemble = ge.fit(lambda: ge.models.MLP(2, (4,)), data, **options)\n"
        "print(len(ensemble.predict_proba(data[0])), len(_switches()))"
    )
    assert run(code) == ["2", "3"]
