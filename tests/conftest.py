import struct
import warnings

import hypothesis
import numpy as np
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.runs.notes import WeakMemberWarning

hypothesis.settings.register_profile(
    "default",
    deadline=None,  # machines differ, and a slow one is no failure
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=50,
    derandomize=True,
)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Bit-for-bit claims are for one thread count, and tests of tiny models are fastest with one."""
    torch.set_num_threads(1)


@pytest.fixture
def blobs():
    """A small two-class problem: two clouds that overlap a little."""
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(60) % 2
    x = torch.randn(60, 2, generator=generator) + 2.0 * y[:, None]
    return x, y


@pytest.fixture
def quick():
    """Options of a fit that takes a fraction of a second."""
    return {"recipe": ge.Recipe(epochs=3, batch_size=16), "progress": False, "device": "cpu"}


def small_mlp():
    return ge.models.MLP(2, hidden=(8,))


@pytest.fixture
def make_model():
    return small_mlp


@pytest.fixture(scope="session")
def write_mnist():
    """Write a split of an MNIST in the published format: digits that their brightness tells apart, with some noise."""

    def write(folder, prefix, count, seed):
        folder.mkdir(parents=True, exist_ok=True)
        labels = (np.arange(count) % 10).astype(np.uint8)
        noise = np.random.default_rng(seed).integers(0, 30, (count, 28, 28))
        images = (25 * labels[:, None, None] + noise).astype(np.uint8)
        header = struct.pack(">IIII", 0x803, *images.shape)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())

    return write


@pytest.fixture(scope="session")
def invoke():
    """Run a command of the command line within this process."""
    from typer.testing import CliRunner

    from greedy_ensembles.cli import application

    def run(*arguments):
        wide = {"COLUMNS": "200"}  # and not what whoever runs the tests has, or gives the processes of xdist
        return CliRunner().invoke(application(), [str(argument) for argument in arguments], env=wide)

    return run


@pytest.fixture(scope="session")
def train_run(invoke):
    """Train a run on the tiny MNIST of a folder, in a moment."""

    def train(home, name, *options, model):
        fixed = ["--size", 2, "--root", home / "data", "--out", home / name, "--device", "cpu", "--quiet"]
        short = ["--set", "epochs=1", "--validation", 0.2]
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.chdir(home)  # where a module of one's own is found
            warnings.simplefilter("ignore", WeakMemberWarning)  # one epoch is no training
            done = invoke("train", "mnist", "--model", model, *fixed, *short, *options)
        assert done.exit_code == 0, done.output

    return train


#: A module of one's own, with the least network for a tiny MNIST.
LINEAR = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"


@pytest.fixture(scope="session")
def make_home(tmp_path_factory, write_mnist, train_run):
    """Make a folder with a tiny MNIST, noise, a module whose `make` returns a model, and runs of it by name."""

    def make(module, runs, content=LINEAR, examples=60):
        home = tmp_path_factory.mktemp("home")
        write_mnist(home / "data" / "mnist", "train", examples, 0)
        write_mnist(home / "data" / "mnist", "t10k", 40, 1)
        np.save(home / "noise.npy", np.random.default_rng(2).integers(0, 256, (30, 28, 28)).astype(np.uint8))
        (home / f"{module}.py").write_text(content)
        for name, options in runs.items():
            train_run(home, name, *options, model=f"{module}:make")
        return home

    return make


@pytest.fixture
def information():
    """What run.json says of a run, as far as the benchmark reads it."""

    def make(seed=0, strength=None, size=5, depth=8, dataset="mnist", note="", recipe=None, **changes):
        deep = {"class": "greedy_ensembles.method.deep.Deep", "label": "Deep Ensembles"}
        greedy = {"class": "greedy_ensembles.method.greedy.Greedy", "label": "greedy", "strength": strength}
        weighting = None if strength is None else {"class": "Gaussian", "scale": 5.0, "overflow": "wrap"}
        configuration = {
            "method": deep if strength is None else greedy,
            "weighting": weighting,
            "distance": "probabilities",
            "recipe": {"class": "Recipe", "epochs": 20, **(recipe or {})},
            "seed": seed,
            "validation": 0.1,
            "data": "0" * 64,
            **changes,
        }
        model = {"partial": "greedy_ensembles.models.preresnet.PreResNet", "args": [depth], "keywords": {}}
        data = {"name": dataset, "images": 60_000, "source": "", "note": note}
        return {"size": size, "configuration": configuration, "model": model, "data": data}

    return make
