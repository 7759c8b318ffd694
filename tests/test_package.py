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


#: Runs each argument, a line of code, as if nothing of ours had been imported before.
EACH_AFRESH = """
import functools, sys
from importlib.machinery import SourceFileLoader
SourceFileLoader.get_code = functools.cache(SourceFileLoader.get_code)  # compiled once, run each time
for line in sys.argv[1:]:
    for known in [known for known in sys.modules if known.startswith('greedy_ensembles')]:
        del sys.modules[known]
    exec(line)
"""


def test_libraries_come_when_they_are_asked_for_and_everything_can_be_the_first_to_be_imported():
    lines = [
        "import sys, greedy_ensembles; assert not {'torch', 'numpy', 'sklearn', 'requests'} & sys.modules.keys()",
        "import greedy_ensembles as ge; ge.fit, ge.metrics, ge.models; assert 'sklearn' not in sys.modules",
        "import greedy_ensembles as ge; ge.GreedyEnsembleClassifier(); assert 'sklearn' in sys.modules",
        "from greedy_ensembles import *; assert metrics and fit and weighting.Gaussian and GreedyEnsembleClassifier",
        "import sys, greedy_ensembles.report.page; assert 'matplotlib.figure' in sys.modules",
        *(f"import {room}" for room in ROOMS),  # a circle of imports may work from one end only
        *(f"import greedy_ensembles as ge; ge.{name}" for name, home in ge._HOMES.items() if "." in home),
        *(f"import greedy_ensembles.report.{name}" for name in ("ablation", "comparison_pictures", "planes")),
        "import sys; assert 'matplotlib.pyplot' not in sys.modules",  # which looks for a display, and keeps figures
    ]
    assert len(lines) > 30
    done = subprocess.run([sys.executable, "-c", EACH_AFRESH, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
