"""Run folders to be forged."""

import shutil

import pytest
from tests.runs.forgery import train

import greedy_ensembles as ge


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, size=2)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def fit(blobs, make_model, quick, tmp_path):
    """A fit into one folder; further arguments change it."""

    def run(**changes):
        arguments = {"make_model": make_model, "data": blobs, "size": 3, "strength": 2.0, "run_dir": tmp_path / "run"}
        return ge.fit(**{**arguments, **quick, **changes})

    return run
