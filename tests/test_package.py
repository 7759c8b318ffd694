"""The package's own face: public names, which are imported when they are first asked for."""

import pkgutil
import subprocess
import sys

import pytest

import greedy_ensembles as ge

ROOMS = sorted(module.name for module in pkgutil.iter_modules(ge.__path__, "greedy_ensembles."))


@pytest.mark.parametrize("name", ge.__all__)
def test_every_public_name_is_there(name):
    assert getattr(ge, name) is not None
    assert name in dir(ge)


def test_other_names_are_refused_by_name():
    with pytest.raises(AttributeError, match="'greedy_ensembles' has no attribute 'Ensembles'"):
        ge.Ensembles  # noqa: B018


def test_importing_the_package_imports_no_libraries_and_a_star_brings_everything():
    code = (
        "import sys, greedy_ensembles; assert not {'torch', 'numpy', 'sklearn'} & sys.modules.keys(); "
        "from greedy_ensembles import *; assert metrics and fit and weighting.Gaussian and GreedyEnsembleClassifier"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_room_can_be_the_first_to_be_imported():
    """A circle of imports may work from one end only."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for known in [known for known in sys.modules if known.startswith('greedy_ensembles')]:\n"
        "        del sys.modules[known]\n"
        "    importlib.import_module(name)\n"
    )
    assert "greedy_ensembles.training" in ROOMS
    done = subprocess.run([sys.executable, "-c", code, *ROOMS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
