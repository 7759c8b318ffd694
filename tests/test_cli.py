import os
import subprocess
import sys
from pathlib import Path

import numpy as np
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
def test_typing_errors_are_explained(invoke, arguments, message):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())  # out of its box
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored at the start
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


def run_with_module(folder, name, content, *arguments):
    """Run a command for which one of the libraries that it imports is another."""
    (folder / f"{name}.py").write_text(content)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([*MODULE, *map(str, arguments)], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("library", ["typer", "torch"])  # one before the command is known, one within it
def test_an_interruption_while_libraries_are_imported_is_one_line(library, tmp_path):
    done = run_with_module(tmp_path, library, INTERRUPTED, "two-moons", "--out", tmp_path / "out")
    assert done.stderr == "Interrupted.\n"
    assert done.returncode == 130


def test_help_does_not_wait_for_torch(tmp_path):
    done = run_with_module(tmp_path, "torch", "raise RuntimeError('torch is imported')", "train", "--help")
    assert done.returncode == 0, done.stderr
    assert "--strength" in done.stdout


@pytest.mark.parametrize("study", ["two-moons", "illustrate", "guarantee-study"])
def test_an_out_that_is_a_file_is_one_line(invoke, study, tmp_path):
    (tmp_path / "file").write_text("mine")
    done = invoke(study, "--out", tmp_path / "file")
    assert done.exit_code == 1
    assert done.stderr == f"error: --out must be a folder, but {tmp_path / 'file'} is a file\n"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("study", ["two-moons", "illustrate", "guarantee-study"])
def test_a_seed_below_0_is_told_by_the_name_of_its_option(invoke, study, tmp_path):
    done = invoke(study, "--out", tmp_path / "out", "--seed", "-1")
    assert done.exit_code == 1
    assert done.stderr == "error: --seed must be at least 0, got -1\n"
    assert not (tmp_path / "out").exists()


def test_the_home_folder_is_spelled_out_where_shells_leave_it(invoke, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    done = invoke("evaluate", "runs", "--out=~/file")
    assert done.stderr == f"error: --out must be a folder, but {tmp_path / 'file'} is a file\n"
    assert f"{tmp_path / 'there'} does not exist" in invoke("predict", "~/there", "file").stderr


def test_a_damaged_run_is_one_line(invoke, tmp_path):
    (tmp_path / "run.json").write_text("{")
    done = invoke("evaluate", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'run.json'} is damaged")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with ten images of a stand-in and a broken SVHN."""
    monkeypatch.setenv("GREEDY_ENSEMBLES_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "ood").mkdir()
    np.savez(tmp_path / "ood" / "places.npz", x=np.full((10, 32, 32, 3), 51, np.uint8))
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"no matrix")
    return tmp_path


def test_data_list_names_every_set(invoke, data):
    done = invoke("data", "list")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ge.data.SETS)
    assert "train 60,000, test 10,000" in done.stdout


def test_data_status_says_what_is_there(invoke, data):
    done = invoke("data", "status")
    assert done.exit_code == 0
    assert str(data) in done.stdout
    assert "ood/places.npz" in done.stdout
    assert "stand-in: MIT Mini-Places" in done.stdout
    assert "Not there: mnist, " in done.stdout
    assert "uniform" not in done.stdout


def test_data_status_says_where_there_is_no_folder(invoke, tmp_path):
    done = invoke("data", "status", "--root", tmp_path / "no[where]")  # square brackets are no markup
    assert done.exit_code == 0
    assert f"There is no folder {tmp_path / 'no[where]'}\n" in done.stdout
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is a file" in invoke("data", "status", "--root", tmp_path / "file").stdout


def test_data_check_reads_all_and_names_what_is_broken(invoke, data):
    done = invoke("data", "check")
    assert done.exit_code == 1
    assert "3x32x32" in done.stdout
    assert "0.2000 0.2000 0.2000" in done.stdout
    assert "partial: 10 of 10,000" in done.stdout
    assert "cannot be read" in done.stdout
    assert done.stderr == "error: 1 of 2 could not be read\n"


def test_data_check_of_some(invoke, data):
    done = invoke("data", "check", "places365", "bernoulli")
    assert done.exit_code == 0
    assert "25,000" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "mnist"], "none of the data sets asked for is in"),
        (["check", "mnits"], "did you mean 'mnist'"),
        (["download", "mnist", "svnh"], "did you mean 'svhn'"),
        (["download", "uniform"], "name must be one of"),
    ],
)
def test_data_errors_are_one_line(invoke, data, arguments, message):
    done = invoke("data", *arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
