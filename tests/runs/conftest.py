"""Run folders to be forged."""

import shutil

import pytest
from tests.runs.forgery import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, size=2)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"
