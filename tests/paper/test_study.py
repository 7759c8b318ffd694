import dataclasses
from itertools import pairwise

import pytest

import greedy_ensembles as ge
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Case, Job, Protocol, Section, jobs, members_to_train


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_repetitions_share_no_member(study):
    seeds = {}
    for job in jobs(study, Protocol()):
        seeds.setdefault(job.case, []).append(job.seed)
    for case, own in seeds.items():
        assert len(own) == study.seeds
        assert all(other - one >= case.size for one, other in pairwise(own))


def test_names_tell_apart_all_that_trains_otherwise(tiny):
    base = Job(Case("cifar10", "VGG16BN", 11, 5.0), 0, Protocol())
    assert base.name == base.run == "cifar10-VGG16BN-M11-greedy-5-seed0"
    changes = [
        *(dataclasses.replace(base, case=dataclasses.replace(base.case, **change)) for change in (
            {"dataset": "svhn"}, {"model": "PreResNet20"}, {"size": 5}, {"strength": None}, {"strength": 0.5},
            {"weighting": "clip"}, {"weighting": "svhn/test"}, {"epochs": 30},
        )),
        *(dataclasses.replace(base, protocol=protocol) for protocol in (
            Protocol(schedule="concurrent"), Protocol(precision="bf16"), Protocol(weighting_batch=8),
            Protocol(statistics="batch"),
        )),
        dataclasses.replace(base, seed=11),
    ]  # fmt: skip
    for names in ([job.run for job in (base, *changes)], [job.name for job in (base, *changes)]):
        assert len(set(names)) == len(names)
    assert not any("/" in name for name in names)


def test_a_run_that_is_judged_on_fewer_images_is_the_same_run_with_another_record():
    whole, few = (Job(Case("mnist", "PreResNet8", 5), 0, Protocol(ood_images=limit)) for limit in (None, 100))
    assert whole.run == few.run
    assert whole.name != few.name


def test_deep_ensembles_of_all_sizes_are_the_first_members_of_one_run():
    study = STUDIES["mnist"]
    deep = [job for job in jobs(study, Protocol()) if job.case.strength is None and job.seed == 100]
    assert [job.case.size for job in deep] == [3, 5, 7, 9, 15]
    assert {job.run for job in deep} == {"mnist-PreResNet8-deep-seed100"}
    assert len({job.name for job in deep}) == 5
    assert {members_to_train(job.case, study) for job in deep} == {15}
    assert {members_to_train(case, study) for case in study.cases if case.strength == 0.1} == {3, 5, 7, 9, 15}


def test_tables_fill_evenly(tiny):
    assert [job.seed for job in jobs(tiny, Protocol())] == [0, 0, 100, 100]


def test_a_case_of_two_sections_is_one_run(tiny):
    twice = dataclasses.replace(tiny, sections=(tiny.sections[0], dataclasses.replace(tiny.sections[0], title="again")))
    assert len(jobs(twice, Protocol())) == 4


def test_p_star_is_named_where_it_differs():
    wrap, clip = Case("mnist", "PreResNet8", 5, 0.1), Case("mnist", "PreResNet8", 5, 0.1, "clip")
    assert Section("one", (wrap,)).label(wrap) == "greedy, lambda_M = 0.1"
    both = Section("two", (wrap, clip))
    assert [both.label(case) for case in both.cases] == [
        "greedy, lambda_M = 0.1, p* = wrap",
        "greedy, lambda_M = 0.1, p* = clip",
    ]


def test_the_protocol_says_when_it_is_the_papers():
    assert "as in the paper" in Protocol().description
    assert "as in the paper" in Protocol(ood_images=10).description
    for other in (
        Protocol("concurrent"),
        Protocol(precision="bf16"),
        Protocol(weighting_batch=8),
        Protocol(statistics="batch"),
        Protocol(quick=True),
    ):
        assert "as in the paper" not in other.description


def test_recipes_are_the_papers():
    vgg = Case("cifar10", "VGG16BN", 11, 5.0)
    assert Job(vgg, 0, Protocol()).recipe == ge.Recipe.paper("cifar10", "VGG16BN")
    fast = Job(vgg, 0, Protocol("concurrent", "bf16", 32)).recipe
    assert fast == ge.Recipe.paper("cifar10", "VGG16BN", precision="bf16", weighting_batch_size=32)
    assert Case("mnist", "PreResNet8", 5).recipe() == ge.Recipe.paper("mnist", "PreResNet8")
    assert dataclasses.replace(vgg, epochs=3).published_epochs == 100


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), (8, 2), (30, 5), (100, 5)])
def test_a_short_training_warms_up_for_a_quarter_at_the_most(epochs, warmup):
    assert Case("cifar10", "VGG16BN", 5, epochs=epochs).recipe().warmup_epochs == warmup
