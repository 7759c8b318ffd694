import dataclasses
import re

import pytest

from greedy_ensembles.benchmark.runs import Setting
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.published import cell
from greedy_ensembles.paper.records import Records, gather, is_complete, restored
from greedy_ensembles.paper.study import Case, Protocol, Section, Study, filter_study, jobs
from greedy_ensembles.report.results import notes
from greedy_ensembles.storage import FolderError, write_json


@pytest.fixture
def job(tiny):
    return jobs(tiny, Protocol())[0]


def test_a_record_comes_back_as_it_was(tmp_path, job, record_of):
    records, record = Records(tmp_path), record_of(job, packed=["a.npz"], corruptions={"fog/1": {"accuracy": 0.5}})
    assert records.read(job) is None
    records.write(record)
    assert records.read(job) == record
    assert records.names() == [job.name]


def test_an_evaluation_comes_back_without_its_scores(job, record_of):
    evaluation = restored(record_of(job, areas={"uniform": 0.25, "mine": 0.75}, missing=["dtd"]).evaluation)
    assert evaluation.mean("auc") == 0.5
    assert evaluation.missing == ("dtd",)
    assert restored(evaluation.without_scores()) == evaluation
    inside = dataclasses.replace(evaluation.in_domain, member_accuracies=(0.5, 0.25))
    known = dataclasses.replace(evaluation, in_domain=inside)
    assert restored(known.without_scores()) == known
    before = evaluation.without_scores()
    del before["in_domain"]["member_accuracies"]  # as in records from before it was kept
    assert restored(before) == evaluation


def test_a_changed_file_is_refused_and_named(tmp_path, job, record_of):
    records = Records(tmp_path)
    records.write(record_of(job))
    file = records.folder / f"{job.name}.json"
    file.write_text(file.read_text().replace('"seconds": 10.0', '"seconds": 11.0'))
    with pytest.raises(FolderError, match=job.name):
        records.read(job)


def test_a_record_of_another_version_is_refused_with_what_to_do(tmp_path, job, record_of):
    records = Records(tmp_path)
    records.write(record_of(job))
    file = records.folder / f"{job.name}.json"
    write_json(file, {**dataclasses.asdict(record_of(job)), "mood": "good"})
    with pytest.raises(FolderError, match=rf"{job.name}.*no record of this version.*Delete it"):
        records.read(job)


def test_what_is_complete_depends_on_the_study(tiny, job, record_of):
    done = record_of(job)
    assert not is_complete(None, tiny)
    assert is_complete(done, tiny)
    assert not is_complete(dataclasses.replace(done, evaluation=None), tiny)
    assert is_complete(dataclasses.replace(done, evaluation=None), dataclasses.replace(tiny, evaluated=False))
    assert not is_complete(done, dataclasses.replace(tiny, pictures=True))
    assert is_complete(dataclasses.replace(done, packed=["a.npz"]), dataclasses.replace(tiny, pictures=True))
    assert not is_complete(done, dataclasses.replace(tiny, corruptions=True))
    assert is_complete(record_of(job, message="diverged", evaluation=None), tiny)


def test_seeds_become_one_method_and_what_is_missing_is_known(tiny, records_with):
    areas = {None: {0: 0.2, 100: 0.4}, 1.0: {0: 0.9}}
    records = records_with(
        tiny, but=[3], figures=lambda job: {"areas": {"uniform": areas[job.case.strength][job.seed]}}
    )
    (gathered,) = gather(tiny, Protocol(quick=True), records)
    rows = {row.method: row.figures["auc"].ours for row in gathered.comparison.ood_rows}
    assert rows["Deep Ensembles"].mean == pytest.approx(0.3)
    assert rows["Deep Ensembles"].standard_error == pytest.approx(0.1)
    assert rows["greedy, lambda_M = 1"].seeds == 1
    assert [job.name for job in gathered.missing] == ["mnist-PreResNet8-M2-greedy-1-1epochs-seed100"]


def test_runs_that_diverged_are_neither_figures_nor_missing(tiny, records_with):
    records = records_with(tiny, figures=lambda job: {"message": "it left"} if job.case.strength else {})
    (gathered,) = gather(tiny, Protocol(quick=True), records)
    assert [method.label for method in gathered.comparison.methods] == ["Deep Ensembles"]
    assert len(gathered.diverged) == 2
    assert gathered.missing == ()


def test_runs_that_were_judged_on_other_sets_are_compared_on_those_of_all(tiny, records_with):
    """Means over other sets would not be of the same thing: .8 and .6 against .5 alone."""
    records = records_with(
        tiny, figures=lambda job: {"areas": {"uniform": 0.5}, "missing": ["dtd"]} if job.seed else {}
    )
    (gathered,) = gather(tiny, Protocol(quick=True), records)
    rows = [row for row in gathered.comparison.mean_rows if row.set == "mean of 1 of 2 sets"]
    assert [row.figures["auc"].ours.mean for row in rows] == pytest.approx([0.65, 0.65])
    assert [(row.set, row.kind) for row in gathered.comparison.ood_rows][-1] == ("dtd", "missing")
    (told,) = [note for note in notes(gathered.comparison) if note.startswith("missing")]
    assert re.match(r"missing: dtd \(.*same images; means are without", told)


def test_runs_without_a_set_in_common_are_refused_with_the_way_out(tiny, records_with):
    records = records_with(tiny, figures=lambda job: {"areas": {"lsun": 0.5}} if job.seed else {})
    with pytest.raises(ValueError, match=r"M = 2: .*same images.* lsun \(.*Delete the records of"):
        gather(tiny, Protocol(quick=True), records)


def test_other_protocols_are_other_runs(tiny, records_with):
    records = records_with(tiny)
    (gathered,) = gather(tiny, Protocol("concurrent", quick=True), records)
    assert gathered.comparison is None
    assert len(gathered.missing) == 4


def test_the_papers_figures_stand_beside_those_of_the_same_setting(records_with):
    study = dataclasses.replace(STUDIES["mnist"], sections=STUDIES["mnist"].sections[1:2], seeds=1)  # M = 5
    (gathered,) = gather(study, Protocol(), records_with(study, Protocol()))
    cells = {(row.method, row.set): row.figures["auc"].paper for row in gathered.comparison.ood_rows}
    assert cells["greedy, lambda_M = 0.1", "uniform"].mean == 1.0
    assert cells["Deep Ensembles", "dtd"].mean == 0.48
    assert cells["ours, lambda_M = 1, p* = scramble", "dtd"] is None


def test_beside_an_m_that_the_paper_lacks_stands_its_nearest_and_a_note(records_with):
    sizes = {5: True, 11: False}
    for size, noted in sizes.items():
        study = filter_study(STUDIES["svhn"], models=["VGG16BN"], size=size, seeds=1)
        (gathered,) = gather(study, Protocol(), records_with(study, Protocol()))
        cells = {(row.method, row.set): row.figures["auc"].paper for row in gathered.comparison.ood_rows}
        assert cells["Deep Ensembles", "uniform"] == cell(Setting("VGG16BN", "svhn", 11, "deep"), "auc", "uniform")
        assert cells["greedy, lambda_M = 1", "dtd"] == cell(Setting("VGG16BN", "svhn", 11, "greedy", 1.0), "auc", "dtd")
        assert {method for (method, _), paper in cells.items() if paper is None} == {
            "ours, lambda_M = 1, p* = scramble"
        }
        assert any("of M = 11" in note for note in notes(gathered.comparison)) == noted


def test_where_no_figure_of_the_paper_stands_nothing_is_said_of_its_m(records_with):
    study = filter_study(STUDIES["svhn"], models=["VGG16BN"], size=5, seeds=1, strengths=[3.0])
    (gathered,) = gather(study, Protocol(), records_with(study, Protocol(), but=[0]))  # Deep Ensembles
    assert not any("of M = 11" in note for note in notes(gathered.comparison))


@pytest.mark.parametrize("published", [False, True])
def test_runs_of_0_1_say_what_was_not_the_papers_and_have_no_figures_of_another_network(record_of, tmp_path, published):
    study = filter_study(STUDIES["cifar10"], models=["WideResNet28x10"], seeds=1)
    records, keywords = Records(tmp_path), {"classes": 10, "channels": 3}
    for job in jobs(study, Protocol()):
        record = record_of(job)  # whose recipe has but few fields, as those of older versions
        name = "greedy_ensembles.models.wide_resnet.WideResNet28x10"
        model = {"partial": name, "args": [], "keywords": keywords | ({"published": True} if published else {})}
        records.write(dataclasses.replace(record, information={**record.information, "model": model}))
    (gathered,) = gather(study, Protocol(), records)
    said = "; ".join(gathered.comparison.notes)
    assert "lr_updates step instead of epoch" in said
    assert said.count("normalize None instead of [[0.485") == 1  # for all methods together
    assert ("WideResNet28x10 is not that of the paper" in said) == (not published)
    rows = [row for row in gathered.comparison.ood_rows if not row.method.startswith("ours")]
    paper = [row.figures["auc"].paper for row in rows]
    assert all(cell is not None for cell in paper) if published else not any(paper)


def test_figures_that_mean_nothing_stand_beside_none(records_with, tiny):
    (gathered,) = gather(tiny, Protocol(quick=True), records_with(tiny))
    assert {row.figures["auc"].paper for row in gathered.comparison.ood_rows} == {None}


def test_outlier_exposure_has_its_place_in_the_paper_and_a_note(records_with):
    exposed = Case("cifar100", "PreResNet164", 11, 1.0, "cifar10")
    for case, known in ((exposed, True), (dataclasses.replace(exposed, strength=2.0), False)):
        study = Study("oe", "OE", "table", (Section("one", (case,)),), seeds=1)
        (gathered,) = gather(study, Protocol(), records_with(study, Protocol()))
        (row,) = [row for row in gathered.comparison.ood_rows if row.set == "dtd"]
        assert (row.figures["auc"].paper is not None) == known
        assert any("images of cifar10 (train)" in note for note in gathered.comparison.notes)


def test_of_outlier_exposure_that_is_still_missing_nothing_is_said(records_with):
    deep = Case("cifar10", "VGG16BN", 2)
    exposed = dataclasses.replace(deep, strength=1.0, weighting="svhn/test")
    study = Study("oe", "OE", "table", (Section("one", (deep, exposed)),), seeds=1)
    (gathered,) = gather(study, Protocol(), records_with(study, Protocol(), but=[1]))
    assert not any("images of svhn" in note for note in gathered.comparison.notes)


def test_members_that_are_worse_than_others_are_noted(tiny, records_with):
    """An ensemble hides them."""
    records = records_with(tiny)
    for job in jobs(tiny, Protocol(quick=True)):
        record = records.read(job)
        alone = [0.9, 0.2 if job.case.strength and job.seed else 0.8]
        inside = {**record.evaluation["in_domain"], "member_accuracies": alone}
        records.write(dataclasses.replace(record, evaluation={**record.evaluation, "in_domain": inside}))
    (gathered,) = gather(tiny, Protocol(quick=True), records)
    alone = dict(note.split(": ") for note in gathered.comparison.notes if "members alone" in note)
    assert alone["greedy, lambda_M = 1"].endswith(" 20.00% to 90.00%")
    assert alone["Deep Ensembles"].endswith(" 80.00% to 90.00%")


def test_stand_ins_have_no_place_in_the_paper(records_with, tiny):
    study = dataclasses.replace(STUDIES["mnist"], sections=STUDIES["mnist"].sections[1:2], seeds=1)
    records = records_with(study, Protocol())
    for job in jobs(study, Protocol()):
        record = records.read(job)
        data = {**record.information["data"], "name": "mnist (stand-in)"}
        records.write(dataclasses.replace(record, information={**record.information, "data": data}))
    (gathered,) = gather(study, Protocol(), records)
    assert all(row.figures["auc"].paper is None for row in gathered.comparison.ood_rows)


def test_fewer_epochs_than_the_papers_are_noted(records_with, tiny):
    (gathered,) = gather(tiny, Protocol(), records_with(tiny, Protocol()))
    assert "1 epochs of training, where the paper has 20" in gathered.comparison.notes


def test_pictures_are_made_of_the_packed_predictions(tiny, runner):
    study = dataclasses.replace(tiny, pictures=True, seeds=1)
    runner.work(study, jobs(study, Protocol(quick=True)), lambda line: None)
    (gathered,) = gather(study, Protocol(quick=True), runner.records)
    first = gathered.comparison.first
    assert (len(first.in_domain.scores), len(first.ood[0].scores)) == (20, 10)
