import dataclasses
import threading
import time

import numpy as np
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.benchmark import judge, unpack_predictions
from greedy_ensembles.paper import runner as job_module
from greedy_ensembles.paper import work as work_module
from greedy_ensembles.paper.images import stand_in
from greedy_ensembles.paper.records import is_complete, plain
from greedy_ensembles.paper.runner import do, make_model, recipe_of
from greedy_ensembles.paper.study import Case, Protocol, jobs
from greedy_ensembles.paper.work import claimed, work

QUICK = Protocol(quick=True)


def test_every_run_leaves_a_folder_a_record_and_predictions_that_agree(tiny, workshop):
    told = []
    work(tiny, jobs(tiny, QUICK), workshop, told.append)
    assert len(told) == 8
    for job in jobs(tiny, QUICK):
        record, run = workshop.shelf.read(job), ge.load_run(workshop.folder(job))
        assert run.finished
        assert run.configuration["seed"] == job.seed
        assert record.evaluation["in_domain"]["name"] == "mnist (stand-in)"
        packed = unpack_predictions(workshop.shelf.predictions(job.name))
        again = plain(judge(packed.in_domain, packed.ood, missing=packed.missing))
        for kept, anew in zip(record.evaluation["ood"], again["ood"], strict=True):
            assert anew["name"] == kept["name"]
            assert anew["auc"] == pytest.approx(kept["auc"], abs=0.05)  # float16 may swap scores that nearly tie
        # Independently of all that: what the ensemble itself says of the test images.
        test = workshop.sets.test("mnist")
        right = run.ensemble.predict_proba(test.images).mean(dim=0).argmax(dim=1).numpy() == test.labels
        assert record.evaluation["in_domain"]["accuracy"] == pytest.approx(np.mean(right))


def test_predictions_are_timed_after_a_first_pass_and_at_their_best(tiny, workshop, monkeypatch):
    """The first makes kernels, which would count against whatever comes first in a process."""
    clock, taken = [0.0], iter([100.0, 3.0, 2.0, 4.0, 5.0, 6.0])

    def predict_log_proba(ensemble, images, batch_size):
        assert len(images) == 20
        clock[0] += next(taken)

    monkeypatch.setattr(ge.Ensemble, "predict_log_proba", predict_log_proba)
    monkeypatch.setattr(job_module.time, "perf_counter", lambda: clock[0])
    timed = dataclasses.replace(tiny, evaluated=False)
    job = jobs(timed, QUICK)[0]
    record = do(job, timed, workshop)
    assert record.prediction == {"images": 20, "seconds": 2.0}
    assert next(taken, None) is None
    assert is_complete(record, timed)
    assert not is_complete(dataclasses.replace(record, prediction=None), timed)


@pytest.mark.parametrize(
    ("trained_in", "device", "judged_in"),
    [("float32", "cuda", "float32"), ("bf16", "cuda", "tf32"), ("tf32", "cuda", "tf32"), ("bf16", "cpu", "float32")],
)
def test_who_was_trained_in_less_is_judged_in_less(tiny, workshop, monkeypatch, trained_in, device, judged_in):
    asked, predict = [], job_module.predict

    def spy(ensemble, images, precision):
        asked.append(precision)
        return predict(ensemble, images)

    monkeypatch.setattr(job_module, "device_of", lambda _: torch.device(device))
    monkeypatch.setattr(job_module, "predict", spy)
    tiny = tiny.with_cases(lambda case: [dataclasses.replace(case, dataset="cifar10")])
    first = jobs(tiny, dataclasses.replace(QUICK, precision=trained_in))[0]
    record = do(first, tiny, workshop)
    parts = {"evaluation", "packed"}
    assert record.judged_in == ({} if judged_in == "float32" else dict.fromkeys(parts, judged_in))
    assert set(asked) == {judged_in}
    assert len(asked) > 2
    assert unpack_predictions(workshop.shelf.predictions(first.name)).information["judged_in"] == judged_in
    # Another study, on a machine without a GPU, judges its own part in full, and leaves the others as they are.
    monkeypatch.setattr(job_module, "device_of", lambda _: torch.device("cpu"))
    workshop.shelf.write(record)
    again = do(first, dataclasses.replace(tiny, evaluated=False, corruptions=True), workshop)
    assert again.evaluation == record.evaluation
    assert again.corruptions
    assert again.judged_in == {name: judged_in for name in parts if judged_in == "tf32"}


def test_a_small_deep_ensemble_is_part_of_a_large_one(tiny, workshop):
    """Trained with it, and the same as if it had been trained alone; a later study with fewer members finds them."""
    small = tiny.sections[0].cases[0]
    large = dataclasses.replace(small, size=3)
    section = dataclasses.replace(tiny.sections[0], cases=(small, large))
    study = dataclasses.replace(tiny, sections=(section,), seeds=1)
    two, three = jobs(study, QUICK)
    work(study, [two, three], workshop, lambda line: None)
    assert ge.load_run(workshop.folder(two)).size == 3
    records = [workshop.shelf.read(job) for job in (two, three)]
    assert [record.information["size"] for record in records] == [2, 3]
    assert [record.evaluation["members"] for record in records] == [2, 3]
    assert records[0].seconds < records[1].seconds
    alone = dataclasses.replace(workshop, out=workshop.out / "alone")
    found = do(jobs(tiny, QUICK)[0], tiny, alone).evaluation
    for there, here in zip(found["ood"], records[0].evaluation["ood"], strict=True):
        assert there["auc"] == pytest.approx(here["auc"], abs=1e-3)
    workshop.shelf._file(two.name).unlink()
    assert do(two, tiny, workshop).evaluation["members"] == 2


def test_what_is_done_is_not_done_again(tiny, workshop, monkeypatch):
    first, *others = jobs(tiny, QUICK)
    work(tiny, [first], workshop, lambda line: None)
    done = []
    monkeypatch.setattr(work_module, "do", lambda job, *rest: done.append(job) or do(job, *rest))
    work(tiny, [first, *others[:1]], workshop, lambda line: None)
    assert done == others[:1]


def test_a_kill_between_training_and_record_costs_no_training(tiny, workshop, monkeypatch):
    job = jobs(tiny, QUICK)[0]

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "judge", killed)
        with pytest.raises(KeyboardInterrupt):
            do(job, tiny, workshop)
    assert workshop.shelf.read(job) is None
    files = {path: path.stat().st_mtime_ns for path in workshop.folder(job).rglob("weights.safetensors")}
    assert len(files) == 2
    assert do(job, tiny, workshop).status == "done"
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_a_run_in_other_hands_is_passed_over_and_come_back_to(tiny, workshop, monkeypatch):
    monkeypatch.setattr(work_module, "PATIENCE", 0.05)
    first, second = jobs(tiny, QUICK)[:2]
    order, told = [], []
    monkeypatch.setattr(work_module, "do", lambda job, *rest: order.append(job) or do(job, *rest))
    with claimed(workshop.out, first) as mine:
        assert mine
        worker = threading.Thread(target=work, args=(tiny, [first, second], workshop, told.append))
        worker.start()
        while not any("other processes" in line for line in told):
            assert worker.is_alive()
            time.sleep(0.02)
        assert order == [second]
    worker.join(60)
    assert order == [second, first]


def test_what_another_process_finished_meanwhile_is_left_alone(tiny, workshop, monkeypatch, record_of):
    monkeypatch.setattr(work_module, "PATIENCE", 0.05)
    monkeypatch.setattr(work_module, "do", lambda *arguments: pytest.fail("done twice"))
    job, told = jobs(tiny, QUICK)[0], []
    with claimed(workshop.out, job):
        worker = threading.Thread(target=work, args=(tiny, [job], workshop, told.append))
        worker.start()
        while not told:
            time.sleep(0.02)
        workshop.shelf.write(record_of(job))
        worker.join(60)
        assert not worker.is_alive()


def test_training_that_diverges_is_recorded_and_not_tried_again(tiny, workshop, monkeypatch):
    job, told = jobs(tiny, QUICK)[1], []
    real = job_module.recipe_of
    monkeypatch.setattr(job_module, "recipe_of", lambda *of: dataclasses.replace(real(*of), lr=1e30))
    work(tiny, [job], workshop, told.append)
    record = workshop.shelf.read(job)
    assert record.status == "diverged"
    assert "training left the range of numbers" in record.message
    work(tiny, [job], workshop, told.append)
    assert len(told) == 2


def test_a_later_study_adds_to_the_record_and_takes_nothing_away(tiny, workshop):
    tiny = tiny.with_cases(lambda case: [dataclasses.replace(case, dataset="cifar10")])
    job = jobs(tiny, QUICK)[0]
    timed = do(job, dataclasses.replace(tiny, evaluated=False), workshop)
    assert timed.evaluation is None
    assert timed.prediction["seconds"] > 0
    whole = do(job, tiny, workshop)
    assert whole.evaluation is not None
    corrupted = do(job, dataclasses.replace(tiny, evaluated=False, corruptions=True), workshop)
    assert corrupted.evaluation == whole.evaluation
    assert corrupted.packed == whole.packed
    assert set(corrupted.corruptions) == {f"stand-in noise/{severity}" for severity in range(1, 6)}


def test_predictions_need_not_be_kept(tiny, workshop):
    job = jobs(tiny, QUICK)[0]
    assert do(job, tiny, dataclasses.replace(workshop, pack=False)).packed == ()
    assert not workshop.shelf.predictions(job.name).exists()


def test_networks_and_recipes_are_the_papers():
    data = stand_in("cifar10", "train", 20)
    deep = make_model(Case("cifar10", "PreResNet164", 11), data)()
    assert sum(len(block.conv1.weight) > 0 for block in deep.blocks) == 3 * 27  # as the published code builds it
    recipe = recipe_of(Case("cifar10", "VGG16BN", 11, 5.0), Protocol())
    assert recipe == ge.Recipe.paper("cifar10", "VGG16BN")
    fast = recipe_of(Case("cifar10", "VGG16BN", 11, 5.0), Protocol("concurrent", "bf16", 32))
    assert fast == ge.Recipe.paper("cifar10", "VGG16BN", precision="bf16", weighting_batch_size=32)
    assert recipe_of(Case("mnist", "PreResNet8", 5), Protocol()) == ge.Recipe.paper("mnist", "PreResNet8")


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), (8, 2), (30, 5), (100, 5)])
def test_a_short_training_warms_up_for_a_quarter_at_the_most(epochs, warmup):
    assert recipe_of(Case("cifar10", "VGG16BN", 5, epochs=epochs), Protocol()).warmup_epochs == warmup
