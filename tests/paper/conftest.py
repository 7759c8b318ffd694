import dataclasses

import numpy as np
import pytest
import torch

from greedy_ensembles.benchmark import Evaluation, InDomain, OutOfDistribution
from greedy_ensembles.paper import images
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.records import DIVERGED, Record, Records, gather
from greedy_ensembles.paper.runner import Runner
from greedy_ensembles.paper.study import Case, Protocol, Section, Study, jobs

QUICK = Protocol(quick=True)


@pytest.fixture
def few_images(monkeypatch):
    """Quick sets that are smaller still."""
    for name, count in {"TRAIN": 40, "TEST": 20, "OOD": 10}.items():
        monkeypatch.setattr(images, name, count)


@pytest.fixture
def tiny():
    """A study of Deep Ensembles and one lambda_M, two members each, one epoch, two seeds."""
    deep = Case("mnist", "PreResNet8", 2, epochs=1)
    return Study("tiny", "Tiny", "table", (Section("M = 2", (deep, dataclasses.replace(deep, strength=1.0))),), seeds=2)


@pytest.fixture
def runner(few_images, tmp_path):
    return Runner(tmp_path / "out", images.Sets(QUICK, tmp_path / "no data"), torch.device("cpu"), progress=False)


@pytest.fixture
def record_of():
    """Make the record of a job that has these figures, as if it had been trained."""

    def make(job, areas=None, accuracy=0.9, message="", missing=(), epoch_seconds=2.0, **changes):
        case = job.case
        none = np.empty(0)
        areas = {"uniform": 0.8, "dtd": 0.6} if areas is None else areas
        kinds = {name: "synthetic" if name in ("uniform", "gaussian", "bernoulli") else "natural" for name in areas}
        evaluation = Evaluation(
            "mutual_information",
            case.size,
            InDomain(case.dataset, 100, "", accuracy, 0.3, 0.2, 0.01, 0.02, none),
            tuple(OutOfDistribution(name, kinds[name], 50, "", a, a / 2, 1 - a, none) for name, a in areas.items()),
            tuple(missing),
        )
        weighting = {"class": "Gaussian", "scale": 5.0, "overflow": case.weighting} if case.strength else None
        information = {
            "size": case.size,
            "configuration": {
                "method": case.method,
                "strength": case.strength,
                "weighting": weighting,
                "distance": "probabilities",
                "recipe": {"epochs": 20},
                "seed": job.seed,
            },
            "model": {"partial": "greedy_ensembles.models.preresnet.PreResNet", "args": [], "keywords": {}},
            "data": {"name": case.dataset, "images": 60_000, "source": "somewhere", "note": ""},
            "extended_from": None,
        }
        machine = {
            "started": "2030-01-01T00:00:00+00:00",
            "device": "cuda:0 (NVIDIA H200), 4 threads",
            "versions": {"torch": "2.6"},
            "git_commit": "0123456789abcdef",
            "command": ["greedy-ensembles"],
        }
        made = Record(
            job.name,
            DIVERGED if message else "done",
            message,
            information,
            machine,
            seconds=10.0,
            epoch_seconds=epoch_seconds,
            prediction={"images": 100, "seconds": 0.5},
            evaluation=evaluation.without_scores(),
        )
        return dataclasses.replace(made, **changes)

    return make


@pytest.fixture
def records_with(tmp_path, record_of):
    """Fill a folder with records of all runs of a study but some, with figures by method."""

    def fill(study, protocol=QUICK, but=(), figures=lambda job: {}):
        records = Records(tmp_path / "records")
        for number, job in enumerate(jobs(study, protocol)):
            if number not in but:
                records.write(record_of(job, **figures(job)))
        return records

    return fill


@pytest.fixture
def gathered(records_with):
    """Gather a study from records that are made."""

    def make(study, but=(), protocol=None, figures=lambda job: {}):
        protocol = protocol or Protocol()
        return gather(study, protocol, records_with(study, protocol, but, figures))

    return make


@pytest.fixture
def part():
    """Return some sections of a study, without ours."""

    def take(name, *sections, seeds=2):
        study = STUDIES[name].with_cases(lambda case: [] if case.ours else [case])
        return dataclasses.replace(study, sections=tuple(study.sections[number] for number in sections), seeds=seeds)

    return take


@pytest.fixture
def cells():
    """Return the rows of a Markdown table as lists of text."""

    def read(table):
        rows = [line for line in table.splitlines()[2:] if line[:1] == "|"]
        return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]

    return read
