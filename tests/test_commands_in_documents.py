"""Every shell block of the documents runs, top to bottom, as a reader would type it.

Three things are smaller than in the documents: downloads bring a few made-up images, training is cut short, and studies
have the quick budget. What stays as written is what a reader relies on: names, options, paths, and their order.
"""

import dataclasses
import functools
import re
import shlex
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import greedy_ensembles as ge
from greedy_ensembles.cli import application
from greedy_ensembles.data import download, noise
from greedy_ensembles.paper import images as sets
from greedy_ensembles.paper import two_moons
from greedy_ensembles.runs.notes import WeakMemberWarning

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("", "sh", "bash", "shell", "console")
SHORTER = {
    "train": "--size 2 --images 200 --set epochs=1 --set weighting_batch_size=8 --device cpu",
    "train cifar10": "--size 2 --images 8 --validation 0 --set epochs=1 --set warmup_epochs=0 "
    "--set weighting_batch_size=8 --device cpu",
    "reproduce": "--budget quick --seeds 1 --size 5 --device cpu",
    "train pets": "--size 2 --set epochs=2 --shape 3x8x8 --device cpu",
    "train flowers.csv": "--size 2 --set epochs=2 --device cpu",
    "train digits.npz": "--size 2 --set epochs=2 --device cpu",
}


def lines(document):
    """Return the commands of a document's shell blocks, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), flags=re.M | re.S)
    commands = [
        line.partition("#")[0].strip() for language, block in blocks if language in SHELL for line in block.splitlines()
    ]
    return [line for line in commands if line.startswith(("greedy-ensembles ", "make "))]


@pytest.fixture
def a_readers_folder(tmp_path, monkeypatch, write_mnist):
    """An empty folder with an empty data folder, a few pictures, and publishers that have few images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GREEDY_ENSEMBLES_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(noise, "make_noise", functools.partial(noise.make_noise, count=12))
    for name, count in {"TRAIN": 40, "TEST": 20, "OOD": 10}.items():
        monkeypatch.setattr(sets, name, count)

    def fetch(name, root=None, **options):
        folder = ge.data.data_root(root)
        if name == "cifar10":
            folder = folder / "cifar-10-batches-bin"
            folder.mkdir(parents=True)
            for batch in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
                records = np.random.default_rng(0).integers(0, 256, (20, 3073), dtype=np.uint8)
                records[:, 0] = np.arange(20) % 10
                (folder / f"{batch}.bin").write_bytes(records.tobytes())
            return
        if name == "mnist":
            write_mnist(folder / name, "train", 220, 0)
        write_mnist(folder / name, "t10k", 30, 1)

    monkeypatch.setattr(download, "download", fetch)
    (tmp_path / "photos").mkdir()
    for path in (tmp_path / "photos" / "first.png", tmp_path / "one.png"):
        Image.fromarray(np.full((40, 30), 200, np.uint8)).save(path)
    np.save(tmp_path / "more.npy", np.zeros((2, 1, 28, 28), np.uint8))
    return tmp_path


def run(line):
    """Run a command as a shell would, which puts the paths for patterns."""
    _, command, *words = shlex.split(line)
    paths = [path for word in words for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    shorter = "" if "--list" in words else SHORTER.get(f"{command} {words[0]}", SHORTER.get(command, ""))
    done = CliRunner().invoke(application(), [command, *paths, *shorter.split()])
    assert done.exit_code == 0, f"{line}\n{done.output}"


def test_the_pages_on_reports_and_evaluation(a_readers_folder):
    """In one folder: what the second trains anew are other seeds."""
    # The first also takes the runs of `make demo`, whose training is cut short here.
    short = dataclasses.replace(two_moons.RECIPE, epochs=2)
    for strength in two_moons.STRENGTHS:
        folder = Path("demo", "runs", "deep" if strength is None else f"greedy-{strength:g}")
        two_moons._train(strength, *two_moons._moons(0), folder, 0, 2, short, lambda _: None)
    for name in ("report.md", "evaluation.md"):
        for line in lines(ROOT / "docs" / name):
            run(line)
    for path in ("scores.csv", "page.html", "moons.html", "evaluation/evaluation.json", "selection/selection.json"):
        assert (a_readers_folder / path).exists(), path


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("reproduce.md", ["reproduction/quick/mnist/mnist.md", "results/mnist/mnist.md"]),
        ("start.md", ["runs/taste/run.json", "runs/greedy/members/02/weights.safetensors"]),
    ],
)
def test_a_document(a_readers_folder, name, written):
    if name == "reproduce.md":
        shutil.copytree(ROOT / "results" / "mnist", "results/mnist")
    for line in lines(ROOT / "docs" / name):
        run(line)
    for path in written:
        assert (a_readers_folder / path).exists(), path


def test_the_page_on_own_data(a_readers_folder):
    rng = np.random.default_rng(0)
    for folder, count in {"pets/cat": 60, "pets/dog": 60, "other": 8, "new": 5}.items():
        Path(folder).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 60, (40, 50, 3)) + 190 * (folder == "pets/dog")
            Image.fromarray(pixels.astype(np.uint8)).save(f"{folder}/{number}.png")
    flowers = [f"{number},{rng.normal()},{rng.normal()},{'lily' if number % 2 else 'rose'}" for number in range(60)]
    Path("flowers.csv").write_text("\n".join(["id,width,height,species", *flowers]))
    np.savez("digits.npz", x=rng.integers(0, 256, (60, 8, 8)).astype(np.uint8), y=np.arange(60) % 2)
    for line in lines(ROOT / "docs" / "own-data.md"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakMemberWarning)  # two epochs are no training
            run(line)
    assert len(Path("scores.csv").read_text().splitlines()) == 6
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "own-data.md").read_text(), flags=re.M | re.S)
    names = {}
    exec(block.replace("epochs=40", "epochs=1").replace("size=5", "size=2").replace("size=32", "size=8"), names)
    assert str(names["pets"]) == "pets: 120 images of 3 x 8 x 8, 2 classes (cat 60, dog 60)"
    assert names["flags"].shape == (5,)


def test_no_document_with_commands_is_left_out():
    with_commands = {document.name for document in DOCUMENTS if lines(document)}
    tested = {"evaluation.md", "own-data.md", "report.md", "reproduce.md", "start.md"}
    assert with_commands == {"README.md", "CONTRIBUTING.md", *tested}
    others = [line for name in ("README.md", "CONTRIBUTING.md") for line in lines(ROOT / name)]
    assert all(line.startswith("make ") for line in others)


def test_targets_of_make_exist():
    targets = {line.split()[1] for document in DOCUMENTS for line in lines(document) if line.startswith("make ")}
    assert targets == {"demo", "test", "lint", "bench", "docs", "fuzz"}
    rules = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert targets <= set(rules)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_demonstration_installs_no_tools_of_development_and_the_tests_do():
    demo, tests = (
        subprocess.run(
            ["make", "--dry-run", "--always-make", rule], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for rule in ("demo", "test")
    )
    assert "[dev]" not in demo.stdout
    assert "two-moons" in demo.stdout
    assert tests.stdout.index("--editable .") < tests.stdout.index("[dev]") < tests.stdout.index("pytest")


def missing_runs():
    section = (ROOT / "docs/reproduce.md").read_text().partition("## Runs that are missing")[2]
    return re.findall(r"^greedy-ensembles (reproduce (\S+) .*)$", section.partition("\n## ")[0], re.M)


@pytest.mark.parametrize(("command", "study"), missing_runs(), ids=lambda text: text[:40])
def test_runs_that_are_missing_have_three_arms_and_start_by_one_command(command, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # names are not broken over lines, also not in the processes of xdist
    done = CliRunner().invoke(application(), [*shlex.split(command), "--list"])
    shown = done.output
    assert done.exit_code == 0, shown
    if study != "methods":
        seeds = {"mnist": 3}.get(study) or int(command.partition("--seeds ")[2][0])
        for number in range(seeds):
            names = set(re.findall(rf"\S+seed{100 * number}\b", shown.replace("\n", "\n ")))
            assert any("-deep-" in name for name in names)
            ours = {name for name in names if "-batch-statistics-" in name and "-concurrent-" in name}
            assert ours
            assert {name for name in names if "-greedy-" in name} - ours
        assert "seed300" not in shown
