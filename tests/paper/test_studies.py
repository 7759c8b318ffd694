"""The studies against the paper's tables, which are the independent word on what was trained."""

import dataclasses

import pytest

from greedy_ensembles.benchmark import PRESETS
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.published import table
from greedy_ensembles.paper.study import Job, Protocol, filter_study, jobs
from greedy_ensembles.training import Recipe

NAMES = {"C10": "cifar10", "C100": "cifar100", "SVHN": "svhn"}


def cases(study):
    return {(case.model, case.dataset, case.size, case.strength) for case in STUDIES[study].cases if not case.ours}


def test_the_main_studies_have_all_settings_of_the_table():
    for study in ("cifar10", "cifar100", "svhn"):
        asked = {
            (row["architecture"], NAMES[row["dataset"]], 11, float(row["lambda_m"]) if row["lambda_m"] else None)
            for row in table("in_domain")
            if NAMES[row["dataset"]] == study
        }
        assert cases(study) == asked
        assert STUDIES[study].seeds == 5


def test_mnist_has_all_sizes_and_the_curve():
    sizes = {int(row["size"]) for row in table("in_domain_mnist")}
    assert {case.size for case in STUDIES["mnist"].cases} == sizes
    assert {(case.size, case.strength) for case in STUDIES["mnist"].cases} >= {(size, 0.1) for size in sizes}
    assert STUDIES["mnist"].seeds == 3
    curves = [section for section in STUDIES["mnist"].sections if section.curve]
    assert [section.cases[0].size for section in curves] == [3, 5, 9, 15]
    for curve in curves:
        assert {case.strength for case in curve.cases} == {None, 0.0001, 0.001, 0.01, 0.1, 1.0, 7.0}


def test_small_ensembles_have_the_sizes_of_the_table():
    sizes = {(int(row["size"]), NAMES[row["dataset"]]) for row in table("small_ensembles")}
    own = [case for case in STUDIES["ensemble-size"].cases if case.model == "PreResNet164"]
    assert {(case.size, case.dataset) for case in own} == sizes


def test_overhead_has_the_networks_of_the_table():
    assert {case.model for case in STUDIES["overhead"].cases} == {row["architecture"] for row in table("overhead")}


@pytest.mark.parametrize("study", [study for study in STUDIES.values() if study.sections], ids=lambda study: study.name)
def test_sections_have_deep_ensembles_on_equal_terms_and_files_of_their_own(study):
    for section in study.sections:
        deep = [case for case in section.cases if case.strength is None]
        assert len(deep) == 1
        for case in section.cases:
            terms = [(one.dataset, one.model, one.size, one.epochs) for one in (case, deep[0])]
            assert terms[0] == terms[1]
            assert Job(case, 0, Protocol()).recipe.epochs > 0
        labels = [section.label(case) for case in section.cases]
        assert len(set(labels)) == len(labels)
        assert section.cases[0].dataset in PRESETS
    stems = [section.stem for section in study.sections]
    assert len(set(stems)) == len(stems)


def test_studies_that_share_runs_do_so():
    assert cases("qualitative") <= cases("cifar10") | cases("cifar100")
    assert cases("robustness") <= cases("cifar10")


def test_ours_differs_from_the_paper_in_p_star_its_batch_and_statistics_strength_and_schedule_alone():
    study = filter_study(STUDIES["cifar10"], models=["VGG16BN"], seeds=3)
    every = jobs(study, Protocol(weighting_batch=8))
    assert [job.seed for job in every] == [0] * 3 + [100] * 3 + [200] * 3
    deep, paper, ours = every[:3]
    assert (deep.case.strength, paper.case.strength, ours.case.strength) == (None, 5.0, 1.0)
    assert (paper.case.weighting, ours.case.weighting) == ("wrap", "scramble")
    assert (paper.protocol.schedule, ours.protocol.schedule) == ("sequential", "concurrent")
    changed = {"weighting_statistics": "batch", "weighting_batch_size": 32}
    assert ours.recipe == dataclasses.replace(paper.recipe, **changed)
    assert paper.recipe == Recipe.paper("cifar10", "VGG16BN", weighting_batch_size=8)
