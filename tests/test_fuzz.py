"""A fixed part of the search that `make fuzz` goes on with for hours."""

import random
import sys

import pytest
from tests import fuzz
from tests.damage import File

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")


def test_damaged_files_of_every_kind_are_read_or_refused_by_name():
    assert fuzz.find(seed=0, count=60) == []


def test_the_search_sees_what_it_looks_for(tmp_path):
    """A reader that raises something else, or does not name its file, is a finding; one that names it is none."""

    def reading(error):
        def read(path):
            raise error(path)

        return File("a.x", [b"content"], read)

    cases = [
        (lambda path: ValueError(f"{path} is damaged"), ""),
        (lambda path: ValueError("it is damaged"), "does not name the file"),
        (lambda path: KeyError(path), "KeyError"),
        (lambda path: MemoryError(), "MemoryError"),
    ]
    for number, (error, message) in enumerate(cases):
        found = fuzz.read_damaged(reading(error), tmp_path, random.Random(number))
        assert message in found
        assert bool(found) == bool(message)
