"""The package's own face: public names, which are imported when they are first asked for."""

import dataclasses
import inspect
import pkgutil
import re
import subprocess
import sys
import types

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
        *(f"import greedy_ensembles.report.{name}" for name in ("ablation", "detection", "page.build", "planes")),
        "import sys; assert 'matplotlib.pyplot' not in sys.modules",  # which looks for a display, and keeps figures
    ]
    assert len(lines) > 30
    done = subprocess.run([sys.executable, "-c", EACH_AFRESH, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def public_names():
    """Every name below ``ge``; a module without ``__all__`` shows what it and its neighbours define."""
    found = {name: getattr(ge, name) for name in ge.__all__}
    for name, module in list(found.items()):
        if isinstance(module, types.ModuleType):
            room = module.__name__.rpartition(".")[0] if not hasattr(module, "__all__") else module.__name__
            ours = [key for key, value in vars(module).items() if getattr(value, "__module__", "").startswith(room)]
            for key in getattr(module, "__all__", [key for key in ours if not key.startswith("_")]):
                found[f"{name}.{key}"] = getattr(module, key)
    return found


def callables():
    """Everything that a user may call, by its name, with the docstring that must say what its arguments are."""
    for name, value in public_names().items():
        if inspect.isclass(value):
            yield name, value, inspect.getdoc(value)
            for key in [key for key in dir(value) if not key.startswith("_")]:
                method = getattr(value, key)
                ours = inspect.getmodule(method) is not None and method.__module__.startswith("greedy_ensembles")
                if ours and inspect.isroutine(method):
                    static = isinstance(inspect.getattr_static(value, key), (classmethod, staticmethod))
                    yield f"{name}.{key}", method if static else method.__get__(object()), inspect.getdoc(method)
        elif inspect.isroutine(value):
            yield name, value, inspect.getdoc(value)


def arguments(value):
    try:
        return list(inspect.signature(value).parameters)
    except ValueError:  # of an exception, say, which takes anything
        return []


def described(doc, section):
    """Return the names that a section of a docstring in Google's style begins its entries with."""
    _, _, rest = (doc or "").partition(f"{section}:\n")
    entries = re.findall(r"^    (\w[\w, ]*): ", re.split(r"\n(?=\S)", rest)[0], re.M)
    return {name for entry in entries for name in entry.split(", ")}


def says_what_its_fields_are(kind):
    """Of a dataclass or a named tuple: by a comment of ``#:`` at the fields that need one, or by a list of them all."""
    is_data = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    listed = described(inspect.getdoc(kind), "Attributes") | described(inspect.getdoc(kind), "Args")
    return is_data and ("#:" in inspect.getsource(kind) or set(arguments(kind)) <= listed)


MANY = {name: (value, doc) for name, value, doc in callables() if len(arguments(value)) >= 3}


@pytest.mark.parametrize("name", MANY)
def test_three_arguments_or_more_are_described_one_by_one(name):
    value, doc = MANY[name]
    if inspect.isclass(value) and says_what_its_fields_are(value):
        return  # its arguments are its fields
    assert set(arguments(value)) - described(doc, "Args") == set()


def test_what_is_called_is_found_wherever_it_is():
    wrapped, made, inherited = "split_batchnorm", "Recipe.paper", "data.ImageSet.resized"
    assert {"fit", wrapped, made, "Coupling.met", "models.MLP", "weighting.Gaussian.from_data"} <= MANY.keys()
    assert inherited in dict.fromkeys(name for name, *_ in callables())
    doc = "Do.\n\nArgs:\n    a, b: both.\n        c: no.\n    d: one.\n\nMore: no."
    assert described(doc, "Args") == {"a", "b", "d"}
