import dataclasses

import pytest

from greedy_ensembles.benchmark.paper import Setting, cell
from greedy_ensembles.paper.filter import filter_study
from greedy_ensembles.paper.gather import gather
from greedy_ensembles.paper.reading import read
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Case, Protocol, Section, Study, jobs
from greedy_ensembles.report.results import notes


def test_seeds_become_one_method_and_what_is_missing_is_known(tiny, shelf_with):
    areas = {None: {0: 0.2, 100: 0.4}, 1.0: {0: 0.9}}
    shelf = shelf_with(tiny, but=[3], figures=lambda job: {"areas": {"uniform": areas[job.case.strength][job.seed]}})
    (gathered,) = gather(tiny, Protocol(quick=True), shelf)
    rows = {row.method: row.figures["auc"].ours for row in gathered.comparison.ood_rows}
    assert rows["Deep Ensembles"].mean == pytest.approx(0.3)
    assert rows["Deep Ensembles"].standard_error == pytest.approx(0.1)
    assert rows["greedy, lambda_M = 1"].seeds == 1
    assert [job.name for job in gathered.missing] == ["mnist-PreResNet8-M2-greedy-1-1epochs-seed100"]


def test_runs_that_diverged_are_neither_figures_nor_missing(tiny, shelf_with):
    shelf = shelf_with(tiny, figures=lambda job: {"message": "it left"} if job.case.strength else {})
    (gathered,) = gather(tiny, Protocol(quick=True), shelf)
    assert [method.label for method in gathered.comparison.methods] == ["Deep Ensembles"]
    assert len(gathered.diverged) == 2
    assert gathered.missing == ()


def test_runs_that_were_judged_on_other_sets_are_compared_on_those_of_all(tiny, shelf_with):
    """Means over other sets would not be of the same thing: .8 and .6 against .5 alone."""
    shelf = shelf_with(tiny, figures=lambda job: {"areas": {"uniform": 0.5}, "missing": ["dtd"]} if job.seed else {})
    (gathered,) = gather(tiny, Protocol(quick=True), shelf)
    rows = [row for row in gathered.comparison.mean_rows if row.set == "mean of 1 of 2 sets"]
    assert [row.figures["auc"].ours.mean for row in rows] == pytest.approx([0.65, 0.65])
    assert [(row.set, row.kind) for row in gathered.comparison.ood_rows][-1] == ("dtd", "missing")
    (told,) = [note for note in notes(gathered.comparison) if note.startswith("missing")]
    assert told == "missing: dtd (not all runs here were judged on the same images; means are without them)"


def test_runs_without_a_set_in_common_are_refused_with_the_way_out(tiny, shelf_with):
    shelf = shelf_with(tiny, figures=lambda job: {"areas": {"lsun": 0.5}} if job.seed else {})
    with pytest.raises(ValueError, match=r"M = 2: methods must be evaluated on the same images.*Delete the records"):
        gather(tiny, Protocol(quick=True), shelf)


def test_other_protocols_are_other_runs(tiny, shelf_with):
    shelf = shelf_with(tiny)
    (gathered,) = gather(tiny, Protocol("concurrent", quick=True), shelf)
    assert gathered.comparison is None
    assert len(gathered.missing) == 4


def test_the_papers_figures_stand_beside_those_of_the_same_setting(shelf_with):
    study = dataclasses.replace(STUDIES["mnist"], sections=STUDIES["mnist"].sections[1:2], seeds=1)  # M = 5
    (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol()))
    cells = {(row.method, row.set): row.figures["auc"].paper for row in gathered.comparison.ood_rows}
    assert cells["greedy, lambda_M = 0.1", "uniform"].mean == 1.0
    assert cells["Deep Ensembles", "dtd"].mean == 0.48


def test_beside_an_m_that_the_paper_lacks_stands_its_nearest_and_a_note(shelf_with):
    sizes = {5: True, 11: False}
    for size, noted in sizes.items():
        study = filter_study(STUDIES["svhn"], models=["VGG16BN"], size=size, seeds=1)
        (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol()))
        cells = {(row.method, row.set): row.figures["auc"].paper for row in gathered.comparison.ood_rows}
        assert cells["Deep Ensembles", "uniform"] == cell(Setting("VGG16BN", "svhn", 11, "deep"), "auc", "uniform")
        assert cells["greedy, lambda_M = 1", "dtd"] == cell(Setting("VGG16BN", "svhn", 11, "greedy", 1.0), "auc", "dtd")
        assert None not in cells.values()
        assert any("of M = 11" in note for note in notes(gathered.comparison)) == noted
        assert any("beside the paper's M = 11" in sentence for sentence in read(gathered)) == noted


def test_where_no_figure_of_the_paper_stands_nothing_is_said_of_its_m(shelf_with):
    study = filter_study(STUDIES["svhn"], models=["VGG16BN"], size=5, seeds=1, strengths=[3.0])
    (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol(), but=[0]))  # Deep Ensembles
    assert not any("of M = 11" in note for note in notes(gathered.comparison))


def test_figures_that_mean_nothing_stand_beside_none(shelf_with, tiny):
    (gathered,) = gather(tiny, Protocol(quick=True), shelf_with(tiny))
    assert {row.figures["auc"].paper for row in gathered.comparison.ood_rows} == {None}


def test_outlier_exposure_has_its_place_in_the_paper_and_a_note(shelf_with):
    exposed = Case("cifar100", "PreResNet164", 11, 1.0, "cifar10")
    for case, known in ((exposed, True), (dataclasses.replace(exposed, strength=2.0), False)):
        study = Study("oe", "OE", "table", (Section("one", (case,)),), seeds=1)
        (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol()))
        (row,) = [row for row in gathered.comparison.ood_rows if row.set == "dtd"]
        assert (row.figures["auc"].paper is not None) == known
        assert any("images of cifar10 (train)" in note for note in gathered.comparison.notes)


def test_of_outlier_exposure_that_is_still_missing_nothing_is_said(shelf_with):
    deep = Case("cifar10", "VGG16BN", 2)
    exposed = dataclasses.replace(deep, strength=1.0, weighting="svhn/test")
    study = Study("oe", "OE", "table", (Section("one", (deep, exposed)),), seeds=1)
    (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol(), but=[1]))
    assert not any("images of svhn" in note for note in gathered.comparison.notes)


def test_members_that_are_worse_than_others_are_noted(tiny, shelf_with):
    """An ensemble hides them."""
    shelf = shelf_with(tiny)
    for job in jobs(tiny, Protocol(quick=True)):
        record = shelf.read(job)
        alone = [0.9, 0.2 if job.case.strength and job.seed else 0.8]
        inside = {**record.evaluation["in_domain"], "member_accuracies": alone}
        shelf.write(dataclasses.replace(record, evaluation={**record.evaluation, "in_domain": inside}))
    (gathered,) = gather(tiny, Protocol(quick=True), shelf)
    assert "greedy, lambda_M = 1: members alone are right on 20.00% to 90.00%" in gathered.comparison.notes
    assert "Deep Ensembles: members alone are right on 80.00% to 90.00%" in gathered.comparison.notes


def test_stand_ins_have_no_place_in_the_paper(shelf_with, tiny):
    study = dataclasses.replace(STUDIES["mnist"], sections=STUDIES["mnist"].sections[1:2], seeds=1)
    shelf = shelf_with(study, Protocol())
    for job in jobs(study, Protocol()):
        record = shelf.read(job)
        data = {**record.information["data"], "name": "mnist (stand-in)"}
        shelf.write(dataclasses.replace(record, information={**record.information, "data": data}))
    (gathered,) = gather(study, Protocol(), shelf)
    assert all(row.figures["auc"].paper is None for row in gathered.comparison.ood_rows)


def test_fewer_epochs_than_the_papers_are_noted(shelf_with, tiny):
    (gathered,) = gather(tiny, Protocol(), shelf_with(tiny, Protocol()))
    assert "1 epochs of training, where the paper has 20" in gathered.comparison.notes


def test_pictures_are_made_of_the_packed_predictions(tiny, workshop):
    from greedy_ensembles.paper.work import work

    study = dataclasses.replace(tiny, pictures=True, seeds=1)
    work(study, jobs(study, Protocol(quick=True)), workshop, lambda line: None)
    (gathered,) = gather(study, Protocol(quick=True), workshop.shelf)
    first = gathered.comparison.first
    assert (len(first.in_domain.scores), len(first.ood[0].scores)) == (20, 10)
