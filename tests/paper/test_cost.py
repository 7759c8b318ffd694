import dataclasses
from pathlib import Path

import pytest
import torch

from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.cost import (
    H200,
    MILLISECONDS,
    Device,
    device_found,
    device_of,
    makespan,
    price,
    show_jobs,
    show_studies,
)
from greedy_ensembles.paper.study import Case, Job, Protocol, jobs
from greedy_ensembles.report.results import spelled


def test_a_step_of_the_table_times_all_steps():
    deep = Job(Case("cifar10", "VGG16BN", 11), 0, Protocol())
    steps = 352  # 45,000 examples in batches of 128
    assert price(deep, H200) == pytest.approx(11 * 100 * steps * MILLISECONDS["cuda"]["VGG16BN"][0] / 1000)


def test_the_greedy_method_pays_for_its_samples_but_for_the_first_member():
    def seconds(strength, **options):
        return price(Job(Case("cifar10", "VGG16BN", 5, strength), 0, Protocol(**options)), H200)

    assert seconds(1.0) == pytest.approx(seconds(None) * (1 + 4 / 5))
    assert seconds(1.0, weighting_batch=32) == pytest.approx(seconds(None) * (1 + 4 / 5 / 4))
    fast, half = (seconds(None, schedule=s, precision="bf16") for s in ("concurrent", "sequential"))
    assert fast < half < seconds(None) == seconds(None, schedule="concurrent")


def test_a_quick_run_is_priced_by_its_few_images():
    tiny = Job(Case("mnist", "PreResNet8", 2, epochs=1), 0, Protocol(quick=True))
    assert price(tiny, Device("cpu", "here")) == pytest.approx(2 * 4 * 50 / 128 * 0.3)  # 200 in batches of 50


def test_a_run_that_was_timed_on_the_device_replaces_the_table(record_of):
    done, other = (Job(Case("mnist", "PreResNet8", size, 0.1), 0, Protocol()) for size in (3, 9))
    timed = {done: record_of(done, epoch_seconds=2.0)}
    assert price(other, H200, timed) == pytest.approx(9 * 20 * 2.0)
    slow, deep = Device("cpu", "slow"), Job(Case("mnist", "PreResNet8", 9), 0, Protocol())
    fast = Job(other.case, 0, Protocol("concurrent"))
    for job, device in ((other, slow), (deep, H200), (fast, H200)):
        assert price(job, device, timed) == price(job, device)


def test_the_table_counts_the_images_that_other_runs_had(record_of):
    """A half of SVHN is half the time, whatever network was trained on it."""
    done, other, elsewhere = (
        Job(Case(dataset, model, 3), 0, Protocol())
        for dataset, model in (("svhn", "VGG16BN"), ("svhn", "PreResNet164"), ("cifar10", "PreResNet164"))
    )
    record = record_of(done)
    images = {**record.information["data"], "images": 73_257 // 2}
    half = {done: dataclasses.replace(record, information={**record.information, "data": images})}
    assert price(other, H200, half) == pytest.approx(price(other, H200) / 2, rel=0.01)
    assert price(elsewhere, H200, half) == price(elsewhere, H200)
    gone = {done: dataclasses.replace(record, information={})}  # as of a run that diverged
    assert price(other, H200, gone) == price(other, H200)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_run_of_every_study_has_a_price(kind):
    for study in STUDIES.values():
        assert all(price(job, Device(kind, "any")) > 0 for job in jobs(study, Protocol()))


def test_runs_are_shared_out_among_gpus_and_paid_for_once():
    """By hand: on two GPUs 7 and 4, then 5 and 3 to whoever is free first. A smaller size of a run costs nothing."""
    seeds = [Job(Case("mnist", "PreResNet8", 5), seed, Protocol()) for seed in (0, 5, 10, 15)]
    prices = dict(zip(seeds, (7.0, 5.0, 4.0, 3.0), strict=True))
    part = Job(Case("mnist", "PreResNet8", 3), 0, Protocol())
    assert part.run == seeds[0].run
    for gpus, seconds in ((1, 19.0), (2, 10.0), (3, 7.0), (64, 7.0)):
        assert makespan({part: 4.0, **prices}, gpus) == seconds


def test_devices_are_known_again(record_of, tiny):
    assert device_of(record_of(jobs(tiny, Protocol())[0])) == H200
    here = device_found(torch.device("cpu"))
    assert here.kind == "cpu"
    assert "one core" in here.basis()
    assert "as if it were an H200" in Device("cuda", "Some GPU").basis()


@pytest.fixture
def shown(capsys, monkeypatch):
    def read(show, *arguments, width=200):
        monkeypatch.setenv("COLUMNS", str(width))
        show(*arguments)
        return capsys.readouterr().out

    return read


def test_studies_are_listed_with_what_they_lack(tmp_path, write_mnist, shown):
    write_mnist(tmp_path / "mnist", "train", 20, 0)
    write_mnist(tmp_path / "mnist", "t10k", 20, 0)
    text = shown(show_studies, list(STUDIES.values()), Protocol(), H200, tmp_path)
    assert all(name in text for name in STUDIES)
    (line,) = [line for line in text.splitlines() if line.strip().startswith("mnist ")]
    assert "105" in line  # (5 sizes x 3 methods + 4 curves of 5 more strengths) x 3 seeds
    assert "dtd (OOD)" in line
    assert "NVIDIA H200" in text


def test_on_a_narrow_screen_names_of_studies_are_whole_and_no_estimate_is_missing(tmp_path, shown):
    text = shown(show_studies, list(STUDIES.values()), Protocol(), H200, tmp_path, width=80)
    begun = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert set(STUDIES) <= set(begun)
    special = [study for study in STUDIES.values() if study.special is not None]
    assert [text.count(time) for time in ("a minute on", "an hour on")] == [len(special) - 1, 1]


def test_more_gpus_take_less_time_but_no_less_than_a_run(tmp_path, shown):
    def estimate(gpus):
        return shown(show_studies, [STUDIES["overhead"]], Protocol(), H200, tmp_path, gpus)

    prices = sorted(price(job, H200) for job in jobs(STUDIES["overhead"], Protocol()))
    assert f" {spelled(sum(prices))} " in estimate(1)
    assert f" {spelled(prices[-1])} " in estimate(64)
    assert f"{spelled(sum(prices))} of one device, {spelled(prices[-1])} on 64" in estimate(64)


def test_the_page_on_scale_has_what_the_paper_takes(tmp_path, shown):
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text().splitlines()
    for gpus in (1, 8, 64):
        text = shown(show_studies, list(STUDIES.values()), Protocol(), H200, tmp_path, gpus)
        assert text.splitlines()[-1] in page


def test_runs_are_listed_with_their_state(tmp_path, tiny, records_with, shown):
    protocol = Protocol()
    records = records_with(tiny, protocol, but=[3], figures=lambda job: {"message": "no"} if job.seed else {})
    lines = shown(show_jobs, tiny, jobs(tiny, protocol), records, H200, tmp_path).splitlines()
    states = [line.split()[1:] for line in lines if line.strip().startswith("mnist-")]
    assert [state[0] for state in states] == ["done", "done", "diverged", "needs"]
    assert lines[-1].startswith("To do: about 4 s")  # 2 members of an epoch of 2 s, as timed
