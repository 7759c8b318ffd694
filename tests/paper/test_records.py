import dataclasses
import json

import pytest

from greedy_ensembles.paper.records import Shelf, is_complete, plain, restored
from greedy_ensembles.paper.study import Protocol, jobs
from greedy_ensembles.storage import FolderError


@pytest.fixture
def job(tiny):
    return jobs(tiny, Protocol())[0]


def test_a_record_comes_back_as_it_was(tmp_path, job, record_of):
    shelf, record = Shelf(tmp_path), record_of(job, packed=("a.npz",), corruptions={"fog/1": {"accuracy": 0.5}})
    assert shelf.read(job) is None
    shelf.write(record)
    assert shelf.read(job) == record
    assert shelf.names() == [job.name]


def test_an_evaluation_comes_back_without_its_scores(job, record_of):
    evaluation = restored(record_of(job, areas={"uniform": 0.25, "mine": 0.75}, missing=["dtd"]).evaluation)
    assert evaluation.mean("auc") == 0.5
    assert evaluation.missing == ("dtd",)
    assert restored(plain(evaluation)) == evaluation
    inside = dataclasses.replace(evaluation.in_domain, member_accuracies=(0.5, 0.25))
    known = dataclasses.replace(evaluation, in_domain=inside)
    assert restored(json.loads(json.dumps(plain(known)))) == known
    before = plain(evaluation)
    del before["in_domain"]["member_accuracies"]  # as in records from before it was kept
    assert restored(before) == evaluation


def test_a_changed_file_is_refused_and_named(tmp_path, job, record_of):
    shelf = Shelf(tmp_path)
    shelf.write(record_of(job))
    file = shelf.folder / f"{job.name}.json"
    file.write_text(file.read_text().replace('"seconds": 10.0', '"seconds": 11.0'))
    with pytest.raises(FolderError, match=job.name):
        shelf.read(job)


def test_what_is_complete_depends_on_the_study(tiny, job, record_of):
    done = record_of(job)
    assert not is_complete(None, tiny)
    assert is_complete(done, tiny)
    assert not is_complete(dataclasses.replace(done, evaluation=None), tiny)
    assert is_complete(dataclasses.replace(done, evaluation=None), dataclasses.replace(tiny, evaluated=False))
    assert not is_complete(done, dataclasses.replace(tiny, pictures=True))
    assert is_complete(dataclasses.replace(done, packed=("a.npz",)), dataclasses.replace(tiny, pictures=True))
    assert not is_complete(done, dataclasses.replace(tiny, corruptions=True))
    assert is_complete(record_of(job, message="diverged", evaluation=None), tiny)
