"""`greedy-ensembles reproduce`, as a stranger would run it, on stand-ins or a tiny MNIST in the published format."""

import dataclasses
import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from greedy_ensembles.cli import application
from greedy_ensembles.method import METHODS
from greedy_ensembles.paper import images as sets
from greedy_ensembles.paper import method_runs, methods, two_moons
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.study import Protocol, filter_study, jobs
from greedy_ensembles.paper.study import quick as quick_study
from greedy_ensembles.sweeps.executor import Processes
from greedy_ensembles.training import Recipe

RESULTS = Path(__file__).parents[1] / "results"
FEW = {"TRAIN": 40, "TEST": 20, "OOD": 10}  # images of stand-ins
SHORT = ("--epochs", "1", "--weighting-batch", "8")


@pytest.fixture
def reproduce(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count in FEW.items():
        monkeypatch.setattr(sets, name, count)

    def run(*arguments, root="no-data", out="out"):
        fixed = ["--out", tmp_path / out, "--quiet"]
        fixed += [] if root is None else ["--root", tmp_path / root, "--device", "cpu"]
        return invoke("reproduce", *arguments, *fixed)

    return run


#: Three runs: Deep Ensembles, the paper's and ours.
SMALLEST = ("mnist", "--size", "3", "--seeds", "1", *SHORT, "--strengths", "0.1")
#: One of each kind: with a curve of lambda_M, images as p*, corruptions, and all pictures. Times alone: two processes.
OF_EACH_KIND = {"mnist": "PreResNet8", "outlier-exposure": "VGG16BN", "robustness": "VGG16BN", "qualitative": "VGG16BN"}


@pytest.mark.parametrize("study", OF_EACH_KIND)
def test_every_kind_of_study_runs_quickly_from_training_to_page(reproduce, tmp_path, study):
    options = (study, "--budget", "quick", "--seeds", "1", "--model", OF_EACH_KIND[study])
    done = reproduce(*options)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "quick" / study / f"{study}.md").read_text()
    assert "mean nothing" in text
    assert "(stand-in)" in text
    assert "Missing with these settings" not in text
    if study == "mnist":
        again = reproduce(*options)
        assert "s of training," not in again.output  # nothing is trained twice
        # Pages are built elsewhere from the predictions alone.
        shutil.copytree(tmp_path / "out/quick/predictions", tmp_path / "elsewhere/quick/predictions")
        done = reproduce(*options, "--page-only", "--page", tmp_path / "page", out="elsewhere")
        assert done.exit_code == 0, done.output
        there = (tmp_path / "page" / "mnist.md").read_text()
        assert text.partition("## How it was made")[0] == there.partition("## How it was made")[0] != text
        assert not (tmp_path / "elsewhere" / "quick" / "runs").exists()


def test_a_study_can_be_done_part_by_part(reproduce, tmp_path):
    options = ("overhead", "--budget", "quick", "--model", "VGG16BN")
    first = reproduce(*options, "--only", "1/4")
    assert first.exit_code == 0, first.output
    assert "runs still missing: 3" in first.output
    assert "Missing with these settings" in (tmp_path / "out/quick/overhead/overhead.md").read_text()
    rest = reproduce(*options)
    assert "(1 of 3)" in rest.output
    assert "missing" not in rest.output.splitlines()[-1]


def invoke_elsewhere(command, tell):
    for name, count in FEW.items():
        setattr(sets, name, count)
    done = CliRunner().invoke(application(), command)
    tell((done.exit_code, done.output))


def invoke_both(*commands):
    """Run two commands in processes of their own, and return which runs each began."""
    outputs = {}
    jobs = {str(number): functools.partial(invoke_elsewhere, command) for number, command in enumerate(commands)}
    Processes(places=(None, None)).run(jobs, outputs.__setitem__)
    assert [outputs[name][0] for name in jobs] == [0, 0], outputs
    lines = [outputs[name][1].splitlines() for name in jobs]
    return [[line.split()[0] for line in each if line.startswith("cifar10-")] for each in lines], lines


def test_two_jobs_of_a_slurm_array_do_parts_of_their_own_and_two_processes_share_the_rest(tmp_path):
    """Parts by the line of docs/scale.md, as the shell of each job expands it; two of four, of a run each."""
    page = (RESULTS.parent / "docs" / "scale.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("greedy-ensembles") and "SLURM_ARRAY" in line)
    line = line.replace("cifar10", "overhead").replace("/shared/reproduction", str(tmp_path / "out"))
    quick = ["--budget", "quick", "--model", "VGG16BN", "--root", str(tmp_path / "none"), "--device", "cpu", "--quiet"]
    array = [{"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "4"} for number in (1, 2)]
    shell = ["bash", "-c", f"greedy-ensembles() {{ printf '%s\\n' \"$@\"; }}\n{line}"]
    given = [subprocess.run(shell, env=own, capture_output=True, text=True, check=True).stdout for own in array]
    begun, _ = invoke_both(*([*words.splitlines(), *quick] for words in given))
    wanted = jobs(quick_study(filter_study(STUDIES["overhead"], models=["VGG16BN"]), 2), Protocol(quick=True))
    assert begun == [[job.name] for job in wanted[:2]]
    assert len(list((tmp_path / "out" / "quick" / "runs").iterdir())) == 2
    begun, lines = invoke_both(*[["reproduce", "overhead", "--out", str(tmp_path / "out"), *quick]] * 2)
    assert sorted(begun[0] + begun[1]) == sorted(job.name for job in wanted[2:])  # each of them once
    assert not any("still missing:" in line for each in lines for line in each)


def test_real_files_with_the_papers_protocol_cut_short(reproduce, tmp_path, write_mnist):
    """And with a set of images that came after the first of two runs."""
    for part, count, seed in (("train", 200, 0), ("t10k", 40, 1)):
        write_mnist(tmp_path / "data" / "mnist", part, count, seed)
    options = (*SMALLEST, "--ood-images", "20", "--no-pack")
    assert "leave out" not in reproduce(*options, "--only", "1/2", root="data").output
    write_mnist(tmp_path / "data" / "fashion_mnist", "t10k", 40, 3)
    done = reproduce(*options, root="data")
    assert done.exit_code == 0, done.output
    assert "tables with both leave out fashion_mnist" in done.output
    text = (tmp_path / "out" / "mnist" / "mnist.md").read_text()
    assert "partial: 200 of 60,000 images" in text
    assert "uniform, 20 images" in text
    assert "(99.44±0.02)" in text  # the paper's accuracy of Deep Ensembles, M = 3
    page = tmp_path / "out" / "mnist"
    names = json.loads((page / "records" / "study.json").read_text())["runs"]
    records = [json.loads((page / "records" / f"{name}.json").read_text()) for name in names]
    assert [record["information"]["configuration"]["recipe"]["epochs"] for record in records] == [1, 1, 1]
    assert not list((tmp_path / "out" / "predictions").glob("*.npz"))


def test_sets_that_are_not_there_are_told_before_training(reproduce, tmp_path, write_mnist):
    """And so is what that means for the tables, where runs from elsewhere were judged on them."""
    for part, count, seed in (("train", 200, 0), ("t10k", 40, 1)):
        write_mnist(tmp_path / "data" / "mnist", part, count, seed)
        write_mnist(tmp_path / "more" / "mnist", part, count, seed)
        write_mnist(tmp_path / "more" / "fashion_mnist", part, count, seed + 2)
    options = (*SMALLEST, "--ood-images", "20", "--no-pack")
    first = reproduce(*options, "--only", "1/2", root="more")
    assert first.exit_code == 0, first.output
    assert "so no run on mnist is judged on: dtd, omniglot" in first.output
    assert "leave out" not in first.output
    second = reproduce(*options, "--only", "2/2", root="data")
    assert second.exit_code == 0, second.output
    lines = second.output.splitlines()
    assert lines[0].endswith("so no run on mnist is judged on: dtd, fashion_mnist, omniglot")
    assert lines[1].endswith("judged otherwise; tables with both leave out fashion_mnist")
    page = (tmp_path / "out" / "mnist" / "mnist.md").read_text()
    assert re.search(r"missing: fashion_mnist \(.*same images", page)
    assert "mean of 3 of 6 sets" in page


def test_runs_whose_data_are_missing_are_left_out(reproduce, tmp_path, write_mnist):
    write_mnist(tmp_path / "data" / "mnist", "train", 200, 0)
    write_mnist(tmp_path / "data" / "mnist", "t10k", 40, 1)
    options = ("weighting", "--model", "PreResNet8", *SHORT, "--ood-images", "5", "--only", "6/6")
    done = reproduce(*options, root="data")  # the sixth case has CIFAR-10 as p*
    assert done.exit_code == 1
    assert "weighting needs cifar10, not in" in done.output
    more = reproduce(*options[:-1], "1/5", root="data")  # Deep Ensembles, and that case
    assert more.exit_code == 0, more.output
    assert "1 of 2 runs are left out: cifar10 not in" in more.output


def test_the_list_shows_studies_and_runs(reproduce):
    listed = reproduce("--list")
    assert listed.exit_code == 0, listed.output
    assert all(name in listed.output for name in STUDIES)
    runs = reproduce("mnist", "--list", "--size", "3", "--fast")
    assert "mnist-PreResNet8-M3-greedy-0.1-concurrent-bf16-seed0" in runs.output
    assert "two-moons" in reproduce("two-moons", "--list").output


def test_two_moons_needs_no_images_and_has_a_command_that_shows_the_table(reproduce, invoke, tmp_path, monkeypatch):
    monkeypatch.setattr(two_moons, "STRENGTHS", (None,))
    monkeypatch.setattr(two_moons, "SIZE", 2)
    monkeypatch.setattr(two_moons, "RECIPE", dataclasses.replace(two_moons.RECIPE, epochs=1))
    done = reproduce("two-moons", root=None)
    assert done.exit_code == 0, done.output
    assert {"two-moons.md", "records", "two-moons.png"} < {path.name for path in (tmp_path / "out/two-moons").iterdir()}
    shown = invoke("two-moons", "--out", tmp_path / "out" / "two-moons", "--quiet").output
    (row,) = (line.split() for line in shown.splitlines() if line.split()[:1] == ["deep"])
    assert f"| {' | '.join([row[0], '', *row[1:]])} |" in (tmp_path / "out/two-moons/two-moons.md").read_text()
    assert f"Wrote {tmp_path}/out/two-moons/two-moons.md, two-moons.png and records" in shown


def test_the_study_of_methods_is_done_in_parts(reproduce, tmp_path, monkeypatch):
    for place in (methods, method_runs):
        monkeypatch.setattr(place, "METHODS", {"deep": METHODS["deep"]})
    tiny = dataclasses.replace(method_runs.SETTINGS[0], size=2, recipe=Recipe(epochs=1), detectors=None)
    monkeypatch.setattr(methods, "SETTINGS", (tiny, dataclasses.replace(tiny, name="other", network="other")))
    assert "--seeds must be at least 1" in reproduce("methods", "--seeds", "0", root=None).output
    assert "did you mean 'MLP'?" in reproduce("methods", "--model", "MLPs", root=None).output
    assert "scikit-learn's digits" in reproduce("methods", "--page-only", root=None).output
    done = reproduce("methods", "--seeds", "2", "--model", "MLP", "--only", "2/2", root=None)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "out" / "methods"
    assert {path.name for path in (folder / "runs").iterdir()} == {"digits-deep-seed100"}
    page = (folder / "methods.md").read_bytes()
    (folder / "methods.md").unlink()
    assert reproduce("methods", "--page-only", root=None).exit_code == 0
    assert (folder / "methods.md").read_bytes() == page
    assert {path.name for path in (folder / "runs").iterdir()} == {"digits-deep-seed100"}


@pytest.mark.parametrize("study", ["two-moons", "methods"])
def test_options_that_a_study_with_settings_of_its_own_cannot_have_are_named(reproduce, tmp_path, study):
    given = ["--budget", "quick", "--page-only", "--model", "VGG16BN", "--epochs", "1", "--strengths", "1"]
    given += ["--on", "ray", "--fast", "--only", "1/2", "--no-pack", "--size", "3"]
    done = reproduce(study, *given, *(["--seeds", "1"] if study == "two-moons" else []))
    assert done.exit_code == 1
    assert len(done.output.strip().splitlines()) == 1
    named = re.findall("--[a-z-]+", done.output)
    asked = {option for option in given if option.startswith("--")} | {"--root", "--device", "--pack"}
    own = {"--model", "--only", "--page-only"}
    assert set(named) == (asked | {"--seeds"} if study == "two-moons" else asked - own)
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder(reproduce, tmp_path):
    (tmp_path / "out").write_text("")
    done = reproduce("mnist", "--budget", "quick")
    assert done.exit_code == 1
    assert "--out must be a folder" in done.output


def test_a_file_where_the_page_is_to_be_is_refused_before_anything_is_trained(reproduce, tmp_path):
    (tmp_path / "page").write_text("")
    done = reproduce("mnist", "--budget", "quick", "--page", tmp_path / "page")
    assert done.exit_code == 1
    assert done.output.startswith("error: --page must be a folder")
    assert not (tmp_path / "out").exists()


def test_the_fast_protocol_is_told_on_the_page(reproduce, tmp_path):
    options = ("capacity", "--budget", "quick", "--fast", "--weighting-batch", "8", "--seeds", "1", "--only", "1/4")
    done = reproduce(*options)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "quick" / "capacity" / "capacity.md").read_text()
    assert re.search(r"concurrent schedule, bf16, .*batches of 8, .*running statistics", text)
    assert "as in the paper" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a study"),
        (["mnits"], "did you mean 'mnist'"),
        (["mnist"], "mnist needs mnist, not in"),
        (["mnist", "--page-only"], "no record of a run of this study"),
        (["mnist", "--budget", "large"], "--budget must be one of"),
        (["mnist", "--schedule", "parallel"], "--schedule must be one of"),
        (["mnist", "--precision", "half"], "--precision must be one of"),
        (["mnist", "--weighting-batch", "0"], "--weighting-batch must be at least 1"),
        (["mnist", "--strengths", "a"], "--strengths takes numbers with commas, or grid"),
        (["overhead", "--strengths", "grid"], "the paper has no grid"),
        (["overhead", "--budget", "quick", "--epochs", "3"], "trains 2 members for 1 epoch"),
        (["overhead", "--budget", "quick", "--size", "7"], "trains 2 members for 1 epoch"),
        (["mnist", "--strengths", "inf"], "must be numbers above 0, got inf"),
        (["mnist", "--only", "200/200"], "mnist has fewer runs than parts"),
        (["mnist", "--only", "3"], "--only must be N/K"),
        (["mnist", "--list", "--gpus", "0"], "--gpus must be at least 1"),
        (["overhead", "--budget", "quick", "--on", "rey"], "did you mean 'ray'"),
        (["overhead", "--budget", "quick", "--on", "127.0.0.1:9"], "127.0.0.1:9 does not answer"),
        (["overhead", "--budget", "quick", "--on", "processes", "--cpus-per-run", "999"], "--cpus-per-run must be at"),
        (["overhead", "--budget", "quick", "--on", "processes", "--gpus-per-run", "999"], "--gpus-per-run must be at"),
        (["cifar10", "--model", "VGG"], "did you mean 'VGG16BN'"),
    ],
)
def test_mistakes_are_named_in_one_line(reproduce, arguments, message):
    done = reproduce(*arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_without_cifar10c_the_extra_that_makes_corruptions_is_named(reproduce, monkeypatch):
    monkeypatch.setattr(sets, "library_version", lambda: None)
    assert "pip install 'greedy-ensembles[corruptions]'" in reproduce("robustness").output


def test_what_is_done_needs_no_data(reproduce, tmp_path):
    shutil.copytree(RESULTS / "weighting" / "records", tmp_path / "page" / "records")
    fast = ("--fast", "--weighting-batch", "8", "--weighting-statistics", "batch")
    done = reproduce("weighting", "--model", "PreResNet8", *fast, "--page", tmp_path / "page")
    assert done.exit_code == 0, done.output
    assert "still missing:" not in done.output


def test_the_grid_of_the_paper_can_be_asked_for(reproduce):
    text = reproduce("cifar10", "--list", "--model", "VGG16BN", "--strengths", "grid", "--seeds", "1").output
    assert text.count("greedy-") == 11 + 1  # and ours


@pytest.mark.parametrize("page", sorted(path.parents[1].name for path in RESULTS.glob("*/records/study.json")))
def test_committed_pages_are_made_of_their_records(tmp_path, monkeypatch, page):
    """By their own commands, without data or weights."""
    shutil.copytree(RESULTS / page, tmp_path / "results" / page)
    command = json.loads((RESULTS / page / "records" / "study.json").read_text())["command"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", command)
    done = CliRunner().invoke(application(), command[1:])
    assert done.exit_code == 0, done.output
    written = Path("results", page, f"{command[command.index('reproduce') + 1]}.md")
    assert written.read_text() == (RESULTS / page / written.name).read_text()
