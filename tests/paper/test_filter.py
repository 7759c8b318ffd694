import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.paper.filter import filter_study, only, quick
from greedy_ensembles.paper.studies import STUDIES


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
    assert [case.strength for case in study.sections[0].cases] == [None, 1, 3]
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
