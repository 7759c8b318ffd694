import contextlib
import dataclasses

import numpy as np
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.benchmark import judge, unpack_predictions
from greedy_ensembles.paper.images import UNLIKE, Sets, stand_in
from greedy_ensembles.paper.records import is_complete
from greedy_ensembles.paper.runner import arithmetic, fastest, make_model
from greedy_ensembles.paper.study import Case, Job, Protocol, Section, Study, jobs

QUICK = Protocol(quick=True)


def nobody(line):
    pass


def test_every_run_leaves_a_folder_a_record_and_predictions_that_agree(tiny, runner):
    told = []
    runner.work(tiny, jobs(tiny, QUICK), told.append)
    assert len(told) == 4
    for job in jobs(tiny, QUICK):
        record, run = runner.records.read(job), ge.load_run(runner.folder(job))
        assert run.finished
        assert run.configuration["seed"] == job.seed
        assert record.evaluation["in_domain"]["name"] == "mnist (stand-in)"
        kept = [max(epoch["validation_accuracy"] for epoch in history) for history in run.histories]
        assert record.validation_accuracies == kept[: job.case.size]
        packed = unpack_predictions(runner.records.predictions(job.name))
        again = judge(packed.in_domain, packed.ood, missing=packed.missing).without_scores()
        for kept, anew in zip(record.evaluation["ood"], again["ood"], strict=True):
            assert anew["name"] == kept["name"]
            assert anew["auc"] == pytest.approx(kept["auc"], abs=0.05)  # float16 may swap scores that nearly tie
        # Independently of all that: what the ensemble itself says of the test images.
        test = runner.sets.test("mnist")
        right = run.ensemble.predict_proba(test.images).mean(dim=0).argmax(dim=1).numpy() == test.labels
        assert record.evaluation["in_domain"]["accuracy"] == pytest.approx(np.mean(right))


def test_a_record_says_how_its_run_was_started_without_the_machines_paths(tiny, runner, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["/opt/bin/greedy-ensembles", "reproduce", "--out", "/scratch/me/runs", "--data", "sets/all"]
    )
    record = runner.do(jobs(tiny, QUICK)[0], tiny)
    assert record.machine["command"] == ["greedy-ensembles", "reproduce", "--out", "runs", "--data", "sets/all"]


def test_predictions_are_timed_after_a_first_pass_and_at_their_best():
    """The first makes kernels, which would count against whatever comes first in a process."""
    now, taken = [0.0], iter([100.0, 3.0, 2.0, 4.0, 5.0, 6.0])

    def act():
        now[0] += next(taken)

    assert fastest(act, clock=lambda: now[0]) == 2.0


def test_a_study_of_times_has_them(tiny, runner):
    timed = dataclasses.replace(tiny, evaluated=False)
    record = runner.do(jobs(timed, QUICK)[0], timed)
    assert record.prediction["images"] == 20
    assert record.prediction["seconds"] > 0
    assert is_complete(record, timed)
    assert not is_complete(dataclasses.replace(record, prediction=None), timed)


@pytest.mark.parametrize(
    ("trained_in", "device", "judged_in"),
    [("float32", "cuda", "float32"), ("bf16", "cuda", "tf32"), ("tf32", "cuda", "tf32"), ("bf16", "cpu", "float32")],
)
def test_who_was_trained_in_less_is_judged_in_less(trained_in, device, judged_in):
    assert arithmetic(trained_in, torch.device(device)) == judged_in


def test_another_study_judges_its_own_part_and_leaves_the_others_as_they_are(tiny, runner):
    tiny = tiny.with_cases(lambda case: [dataclasses.replace(case, dataset="cifar10")])
    job = jobs(tiny, QUICK)[0]
    elsewhere = {"evaluation": "tf32", "packed": "tf32"}  # as on a GPU
    before = dataclasses.replace(runner.do(job, tiny), judged_in=elsewhere)
    runner.records.write(before)
    timed = runner.do(job, dataclasses.replace(tiny, evaluated=False))
    assert timed.prediction["seconds"] > 0
    after = runner.do(job, dataclasses.replace(tiny, evaluated=False, corruptions=True))
    assert (after.evaluation, after.packed, after.judged_in) == (before.evaluation, before.packed, elsewhere)
    assert after.prediction == timed.prediction
    assert set(after.corruptions) == {f"stand-in noise/{severity}" for severity in range(1, 6)}


def test_a_small_deep_ensemble_is_part_of_a_large_one(tiny, runner):
    """Trained with it, and the same as if it had been trained alone; a later study with fewer members finds them."""
    small = tiny.sections[0].cases[0]
    large = dataclasses.replace(small, size=3)
    section = dataclasses.replace(tiny.sections[0], cases=(small, large))
    study = dataclasses.replace(tiny, sections=(section,), seeds=1)
    two, three = jobs(study, QUICK)
    runner.work(study, [two, three], nobody)
    assert ge.load_run(runner.folder(two)).size == 3
    records = [runner.records.read(job) for job in (two, three)]
    assert [record.information["size"] for record in records] == [2, 3]
    assert [record.evaluation["members"] for record in records] == [2, 3]
    assert records[0].seconds < records[1].seconds
    alone = dataclasses.replace(runner, out=runner.out / "alone")
    found = alone.do(jobs(tiny, QUICK)[0], tiny).evaluation
    for there, here in zip(found["ood"], records[0].evaluation["ood"], strict=True):
        assert there["auc"] == pytest.approx(here["auc"], abs=1e-3)
    (runner.records.folder / f"{two.name}.json").unlink()
    assert runner.do(two, tiny).evaluation["members"] == 2


def test_what_is_done_is_not_done_again(tiny, runner):
    first, second = jobs(tiny, QUICK)[:2]
    runner.work(tiny, [first], nobody)
    told = []
    runner.work(tiny, [first, second], told.append)
    assert [line.partition(": ")[0] for line in told] == [f"{second.name} (1 of 1)"]


class Killed(Sets):
    """The images of a process that does not live to judge."""

    def bench(self, dataset):
        raise KeyboardInterrupt


def test_a_kill_between_training_and_record_costs_no_training(tiny, runner):
    job = jobs(tiny, QUICK)[0]
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(runner, sets=Killed(QUICK, runner.sets.root)).do(job, tiny)
    assert runner.records.read(job) is None
    files = {path: path.stat().st_mtime_ns for path in runner.folder(job).rglob("weights.safetensors")}
    assert len(files) == 2
    assert runner.do(job, tiny).status == "done"
    assert {path: path.stat().st_mtime_ns for path in files} == files


def begun(told):
    return [line.split()[0] for line in told if line.startswith("mnist-")]


def test_a_run_in_other_hands_is_passed_over_and_come_back_to(tiny, runner):
    first, second = jobs(tiny, QUICK)[:2]
    told, before = [], []
    with contextlib.ExitStack() as others:
        assert others.enter_context(runner.claimed(first))

        def until_they_are_done():
            before.extend(begun(told))
            others.close()

        dataclasses.replace(runner, wait=until_they_are_done).work(tiny, [first, second], told.append)
    assert before == [second.name]
    assert begun(told) == [second.name, first.name]


def test_what_another_process_finished_meanwhile_is_left_alone(tiny, runner, record_of):
    job, told = jobs(tiny, QUICK)[0], []
    with runner.claimed(job):
        meanwhile = dataclasses.replace(runner, wait=lambda: runner.records.write(record_of(job)))
        meanwhile.work(tiny, [job], told.append)
    assert begun(told) == []


class Wild(Job):
    """A run whose learning rate no network survives."""

    @property
    def recipe(self):
        return self.case.recipe(lr=1e30, batch_size=10)


def test_training_that_diverges_is_recorded_and_not_tried_again(tiny, runner):
    job, told = jobs(tiny, QUICK)[1], []
    wild = Wild(job.case, job.seed, job.protocol)
    runner.work(tiny, [wild], told.append)
    record = runner.records.read(wild)
    assert record.status == "diverged"
    assert "training left the range of numbers" in record.message
    runner.work(tiny, [wild], told.append)
    assert len(told) == 1


class Broken(Job):
    """A run whose recipe cannot be made."""

    @property
    def recipe(self):
        raise ValueError("no such recipe")


def test_an_error_is_told_with_the_name_of_its_run(tiny, runner):
    first, other = jobs(tiny, QUICK)[:2]
    told = []
    with pytest.raises(ValueError, match="no such recipe"):
        runner.work(tiny, [Broken(first.case, first.seed, first.protocol), other], told.append)
    assert told == [f"{first.run} failed"]


def test_predictions_need_not_be_kept(tiny, runner):
    job = jobs(tiny, QUICK)[0]
    assert dataclasses.replace(runner, pack=False).do(job, tiny).packed == []
    assert not runner.records.predictions(job.name).exists()


def test_networks_are_the_papers():
    deep = make_model(Case("cifar10", "PreResNet164", 11), stand_in("cifar10", "train", 20))()
    assert sum(len(block.conv1.weight) > 0 for block in deep.blocks) == 3 * 27  # as the published code builds it
    wide = make_model(Case("cifar10", "WideResNet28x10", 11), stand_in("cifar10", "train", 20))()
    assert sum(p.numel() for p in wide.parameters()) == 36_489_290


def test_a_set_whose_images_are_p_star_is_not_judged_on(runner, tmp_path):
    (tmp_path / "ood").mkdir()
    images = np.zeros((10, 3, 32, 32), np.uint8)
    np.savez(tmp_path / "ood" / "tiny_imagenet.npz", x=images, y=np.arange(10))
    runner = dataclasses.replace(runner, sets=Sets(runner.sets.protocol, tmp_path))
    case = Case("cifar10", "PreResNet8", 2, 1.0, "scramble", 1)
    for weighting in ("scramble", UNLIKE):
        own = dataclasses.replace(case, weighting=weighting)
        study = Study("one", "One", "none", (Section("one", (own,)),), seeds=1)
        record = runner.do(Job(own, 0, runner.sets.protocol), study)
        judged = {result["name"] for result in record.evaluation["ood"]}
        assert ("tiny_imagenet" in judged) == (weighting == "scramble")
