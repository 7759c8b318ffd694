import subprocess
import sys
from pathlib import Path

import pytest

import greedy_ensembles as ge

MODULE = [sys.executable, "-m", "greedy_ensembles"]
SCRIPT = [str(Path(sys.executable).with_name("greedy-ensembles"))]


def run(command, *arguments):
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["two-moons", "--help"]])
def test_the_module_and_the_command_are_the_same_thing(arguments):
    if not Path(SCRIPT[0]).exists():
        pytest.skip("the package is run from its source, without the command")
    module, script = run(MODULE, *arguments), run(SCRIPT, *arguments)
    assert module.returncode == script.returncode == 0
    assert module.stdout == script.stdout
    assert "greedy-ensembles" in module.stdout


def test_the_version_is_the_packages():
    assert run(MODULE, "--version").stdout == f"greedy-ensembles {ge.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two-moon"], "two-moons"),
        (["two-moons"], "--out"),
        (["two-moons", "--out", "x", "--sead", "3"], "--seed"),
        (["two-moons", "--out", "x", "--seed", "three"], "a valid int"),
    ],
)
def test_typing_errors_are_explained(arguments, message):
    done = run(MODULE, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())  # out of its box
    assert "Traceback" not in done.stderr


def test_an_out_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = run(MODULE, "two-moons", "--out", tmp_path / "file")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_run_is_one_line(tmp_path):
    (tmp_path / "runs" / "deep").mkdir(parents=True)
    (tmp_path / "runs" / "deep" / "run.json").write_text("{")
    done = run(MODULE, "two-moons", "--out", tmp_path)
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "run.json is damaged" in done.stderr
    assert "Traceback" not in done.stderr
