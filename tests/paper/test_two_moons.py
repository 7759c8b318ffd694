"""The command as a person uses it: started, interrupted, started again, looked at."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

import greedy_ensembles as ge

COMMAND = [sys.executable, "-m", "greedy_ensembles", "two-moons", "--out"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Figure 2, made by a command that is interrupted once on its way."""
    out = tmp_path_factory.mktemp("two-moons")
    first = subprocess.Popen([*COMMAND, out], stderr=subprocess.PIPE, text=True, start_new_session=True)
    patience = time.monotonic() + 120
    while not list(out.glob("runs/*/members/02/member.json")) and time.monotonic() < patience:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # what Ctrl-C does: the whole group hears it
    _, messages = first.communicate(timeout=60)
    assert first.returncode == 130
    assert messages.splitlines()[-1] == "Interrupted; the same command goes on from there."
    assert "Traceback" not in messages
    assert not (out / "two-moons.json").exists()
    (out / "README.md").write_text("mine")
    second = subprocess.run([*COMMAND, out], capture_output=True, text=True, check=True)
    assert "two-moons.png" in second.stdout
    assert (out / "README.md").read_text() == "mine"
    return out


def test_the_figures_say_what_the_caption_claims(out):
    results = json.loads((out / "two-moons.json").read_text())
    assert [(r["method"], r["strength"]) for r in results] == [
        ("deep", None), ("greedy", 0.1), ("greedy", 1.0), ("greedy", 10.0),
    ]  # fmt: skip
    far = [r["mi_far"] for r in results]
    assert far[0] < 0.1  # Deep Ensembles stay certain
    assert abs(far[1] - far[0]) < 0.05  # so little is within the noise of seeds
    assert far[1] < far[2] < far[3]
    assert far[3] > 0.9 * math.log(2)  # lambda_M = 10 knows nothing out there, as it should
    for r in results:
        assert set(r) == {"method", "strength", "accuracy", "mi_data", "mi_far"}
        assert r["accuracy"] > 0.88  # the noise of 0.3 allows about 0.91
        assert r["mi_data"] < 0.1


def test_the_picture_has_four_panels(out):
    with Image.open(out / "two-moons.png") as picture:
        width, height = picture.size
    assert width > 1500
    assert 2.5 < width / height < 5


def test_the_page_shows_the_figures_of_the_json(out):
    page = (out / "two-moons.md").read_text()
    for result in json.loads((out / "two-moons.json").read_text()):
        assert f"| {result['mi_data']:.4f} | {result['mi_far']:.4f} |" in page
    assert "seed 0" in page


def test_the_runs_are_there_to_be_read(out):
    run = ge.load_run(out / "runs" / "greedy-10")
    assert run.finished
    assert len(run.ensemble) == 11
    assert run.configuration["strength"] == 10.0
    assert all(len(history) == 150 for history in run.histories)
