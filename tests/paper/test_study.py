import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import greedy_ensembles as ge
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.study import Case, Job, Protocol, Section, filter_study, jobs, members_to_train, only, quick


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
        Job(Case("mnist", "PreResNet8", 5), 0, Protocol()),
        Job(Case("mnist", "PreResNet8", 5), 0, Protocol(three_channels=True)),
        dataclasses.replace(base, seed=11),
    ]  # fmt: skip
    for names in ([job.run for job in (base, *changes)], [job.name for job in (base, *changes)]):
        assert len(set(names)) == len(names)
    assert not any("/" in name for name in names)


def test_a_run_that_is_judged_on_other_images_is_the_same_run_with_another_record():
    protocols = Protocol(), Protocol(ood_images=100), Protocol(resize="crop")
    judged = [Job(Case("mnist", "PreResNet8", 5), 0, protocol) for protocol in protocols]
    assert len({job.run for job in judged}) == 1
    assert len({job.name for job in judged}) == 3


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
        Protocol(resize="crop"),
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


def test_models_are_kept_with_their_sections():
    vgg = filter_study(STUDIES["cifar10"], models=["VGG16BN"])
    assert [section.title for section in vgg.sections] == ["VGG16BN, M = 11"]
    assert {case.model for case in vgg.cases} == {"VGG16BN"}


def test_a_size_of_the_study_is_chosen_and_another_takes_the_place_of_its_only_one():
    assert {case.size for case in filter_study(STUDIES["mnist"], size=5).cases} == {5}
    assert len(filter_study(STUDIES["mnist"], size=5).sections) == 2  # the pair, and the curve
    smaller = filter_study(STUDIES["svhn"], size=5)
    assert {case.size for case in smaller.cases} == {5}
    assert [section.title for section in smaller.sections][1] == "VGG16BN, M = 5"
    with pytest.raises(ValueError, match="3, 5, 7, 9, 15, got 4"):
        filter_study(STUDIES["mnist"], size=4)


def test_strengths_replace_those_of_the_section_and_leave_deep_ensembles():
    study = filter_study(STUDIES["cifar10"], models=["VGG16BN"], strengths=[1, 3])
    assert [(case.strength, case.ours) for case in study.sections[0].cases] == [
        (None, False),
        (1, False),
        (3, False),
        (1, True),
    ]
    with pytest.raises(ValueError, match="above 0"):
        filter_study(STUDIES["cifar10"], strengths=[0.0])


def test_seeds_and_epochs():
    study = filter_study(STUDIES["cifar10"], seeds=1, epochs=30)
    assert study.seeds == 1
    assert {case.epochs for case in study.cases} == {30}
    for wrong in ({"seeds": 0}, {"epochs": 0}, {"size": 0}, {"models": ["VGG"]}):
        with pytest.raises(ValueError, match="--"):
            filter_study(STUDIES["cifar10"], **wrong)


def test_what_the_papers_protocol_is_to_reach_is_asked_of_no_other():
    def asked(**changes):
        return any(
            section.targets for section in filter_study(STUDIES["cifar10"], models=["VGG16BN"], **changes).sections
        )

    assert asked(seeds=1, strengths=[1.0])
    assert asked(epochs=100, size=11)
    assert not asked(epochs=30)
    assert not asked(size=5)


@pytest.mark.parametrize("study", [study for study in STUDIES.values() if study.sections], ids=lambda study: study.name)
def test_quick_studies_are_small_and_keep_every_kind_of_section(study):
    small = quick(study)
    assert len(small.cases) * small.seeds <= 28
    assert {(case.model, case.size, case.epochs) for case in small.cases} == {("PreResNet8", 2, 1)}
    assert {section.curve for section in small.sections} == {section.curve for section in study.sections}
    assert {case.weighting for case in small.cases} == {case.weighting for case in study.cases}
    assert small.datasets == study.datasets
    titles = [section.title for section in small.sections]
    assert len(set(titles)) == len(titles)


@given(st.lists(st.integers(), max_size=30), st.integers(1, 8))
def test_parts_make_up_the_whole(items, parts):
    together = [item for number in range(1, parts + 1) for item in only(items, f"{number}/{parts}")]
    assert sorted(together) == sorted(items)


@pytest.mark.parametrize("part", ["", "1", "0/3", "4/3", "a/b", "1/0", "-1/3"])
def test_parts_that_are_none(part):
    with pytest.raises(ValueError, match="--only must be N/K"):
        only([1, 2], part)
