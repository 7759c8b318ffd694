import functools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.runs import configuration
from greedy_ensembles.runs.configuration import describe, describe_weighting, differences


class Focal:
    def __init__(self, gamma):
        self.gamma = gamma

    def __call__(self, logits, targets):
        return logits.sum()


def test_values_that_train_alike_look_alike_and_others_do_not():
    x = torch.randn(10, 3)
    assert describe(x) == describe(x.numpy()) == describe(x.clone())
    assert describe(x) != describe(x + 1)
    assert describe(ge.Recipe()) == describe(ge.Recipe())
    assert describe(ge.Recipe()) != describe(ge.Recipe(lr=0.2))
    for smoothing in (0.1, 0.5):
        assert describe(nn.CrossEntropyLoss(label_smoothing=0.1)) != describe(nn.CrossEntropyLoss(label_smoothing=0.2))
        assert describe(Focal(smoothing)) == describe(Focal(smoothing))
    assert describe(Focal(0.1)) != describe(Focal(0.5))
    linear = nn.Linear(3, 2)
    assert describe(linear) == describe(linear)
    assert describe(linear) != describe(nn.Linear(3, 2))


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, images):
        return images * self.factor


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms
        self.whole = self


def test_what_an_object_holds_tells_it_from_others():
    def pairs(a, b):
        yield Compose([Scale(a)]), Compose([Scale(b)])
        yield Compose({"first": (Scale(a),)}), Compose({"first": (Scale(b),)})
        yield Scale(a).__call__, Scale(b).__call__
        yield nn.Sequential(nn.Dropout(a)), nn.Sequential(nn.Dropout(b))
        yield nn.Sequential(nn.Sequential(nn.Dropout(a))), nn.Sequential(nn.Sequential(nn.Dropout(b)))
        yield ge.weighting.Mixture([Drawn([a])]), ge.weighting.Mixture([Drawn([b])])

    assert all(describe(one) == describe(again) for one, again in pairs(0.1, 0.1))
    assert all(differences(describe(one), describe(other)) for one, other in pairs(0.1, 0.2))


def test_objects_that_hold_each_other_are_described_once():
    crowd = [Compose([]) for _ in range(12)]
    for one in crowd:
        one.transforms = list(crowd)  # at eight levels that would be 12 ** 8 descriptions
    assert len(json.dumps(describe(crowd[0]))) < 100_000


class Drawn:
    def __init__(self, centres):
        self.centres = centres

    def sample(self, n, generator):
        return torch.randn(n, 2, generator=generator)


def test_lists_that_older_folders_do_not_have_are_no_difference():
    described = describe(Compose([Scale(0.1)]))
    older = {key: value for key, value in described.items() if key != "transforms"}
    assert differences(older, described) == []
    assert differences({**older, "margin": 1.0}, described) == [("margin", 1.0, None)]
    holder = Scale(0.1)
    older = describe(holder)
    holder.inner = torch.tanh
    assert differences(older, describe(holder)) == []
    assert differences(describe(holder), {**describe(holder), "inner": {"function": "another"}})


def test_methods_of_objects_were_once_known_by_name_alone():
    bound = Scale(0.1).__call__
    named = f"{bound.__module__}.{bound.__qualname__}"
    assert differences(named, describe(bound)) == differences(describe(bound), named) == []
    assert differences("tests.Other.__call__", describe(bound))


def test_all_of_it_is_json():
    values = [
        ge.Recipe(optimizer=torch.optim.SGD, loss=nn.functional.cross_entropy, normalize=((0.1, 0.2), (1, 2))),
        functools.partial(ge.models.MLP, 2, hidden=(3,)),
        {"a": np.float32(1.5) * np.ones(3), 5: (None, True)},
        ge.weighting.Gaussian(torch.zeros(50), 1.0),
    ]
    for value in values:
        assert json.loads(json.dumps(describe(value))) == describe(value)


def test_functions_are_known_by_name():
    assert describe(nn.functional.cross_entropy) == "torch.nn.functional.cross_entropy"
    partial = describe(functools.partial(ge.models.MLP, 2, hidden=(3,)))
    assert partial == {"partial": "greedy_ensembles.models.mlp.MLP", "args": [2], "keywords": {"hidden": [3]}}


def test_a_weighting_of_ones_own_is_known_by_its_samples():
    class Shifted:
        def __init__(self, shift):
            self.shift = shift

        def sample(self, n, generator):
            return torch.randn(n, 2, generator=generator) + self.shift

    assert describe_weighting(Shifted(1.0)) == describe_weighting(Shifted(1.0))
    assert describe_weighting(Shifted(1.0)) != describe_weighting(Shifted(2.0))


@dataclass
class _Point:
    a: object
    b: object


def test_differences_are_located():
    ours = describe(_Point(a={"lr": 0.1, "same": 1}, b=[1, 2]))
    theirs = describe(_Point(a={"lr": 0.2, "same": 1, "new": 3}, b=[1, 2]))
    assert differences(ours, theirs) == [("a.lr", 0.1, 0.2), ("a.new", None, 3)]
    assert differences(ours, ours) == []


def test_provenance_names_versions_and_command():
    facts = configuration.provenance(torch.device("cpu"))
    assert facts["versions"]["greedy_ensembles"] == ge.__version__
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["command"] == sys.argv
    assert "cores" in facts["device"]
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_the_commit_is_that_of_a_checkout_which_tracks_the_source(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    source = tmp_path / "configuration.py"
    source.write_text("")
    monkeypatch.setattr(configuration, "__file__", str(source))
    assert configuration.git_commit() is None  # no checkout
    git("init")
    git("commit", "--allow-empty", "-m", "first")
    assert configuration.git_commit() is None  # a checkout of something else, in which the package is installed
    git("add", source.name)
    git("commit", "-m", "second")
    assert configuration.git_commit() == git("rev-parse", "HEAD")
    monkeypatch.setenv("GREEDY_ENSEMBLES_COMMIT", "0123abc")
    assert configuration.git_commit() == "0123abc"
