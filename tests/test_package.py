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


#: Runs each argument, a line of code, as if nothing of ours had been imported before.
EACH_AFRESH = """
import sys
for line in sys.argv[1:]:
    for known in [known for known in sys.modules if known.startswith('greedy_ensembles')]:
        del sys.modules[known]
    exec(line)
"""


@pytest.mark.parametrize(
    "lines",
    [
        [f"import {room}" for room in ROOMS],  # a circle of imports may work from one end only
        [f"import greedy_ensembles as ge; ge.{name}" for name in ge.__all__],
    ],
    ids=["rooms", "names"],
)
def test_everything_can_be_the_first_to_be_imported(lines):
    assert len(lines) > 15
    done = subprocess.run([sys.executable, "-c", EACH_AFRESH, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
