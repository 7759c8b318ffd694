import dataclasses
import json

import pytest

from greedy_ensembles.paper.cost import Device
from greedy_ensembles.paper.curve import areas
from greedy_ensembles.paper.gather import gather
from greedy_ensembles.paper.records import Shelf
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Protocol
from greedy_ensembles.paper.study_page import Circumstances, write_page

HERE = Device("cpu", "here")


@pytest.fixture
def page(tmp_path, shelf_with):
    def write(study, protocol=None, but=(), **options):
        protocol = protocol or Protocol()
        sections = gather(study, protocol, shelf_with(study, protocol, but, **options))
        return write_page(study, sections, tmp_path / "page", Circumstances(["reproduce", "it"], protocol, HERE))

    return write


def mnist(*sections, seeds=2):
    return dataclasses.replace(
        STUDIES["mnist"], sections=tuple(STUDIES["mnist"].sections[i] for i in sections), seeds=seeds
    )


def test_a_page_has_figures_beside_the_papers_and_how_they_were_made(page):
    path = page(mnist(1), figures=lambda job: {"areas": {"uniform": 0.9, "dtd": 0.6, "omniglot": 0.95}})
    text = path.read_text()
    for part in (
        "as in the paper",
        "90.00±0.00 (99.46±0.01)",  # accuracy, ours and the paper's
        "| uniform, 50 images | synthetic |",
        "0.900±0.000 (1.00)",
        "mean of 2 natural",
        "100 images",
        "`reproduce it`",
        "NVIDIA H200",
        "2030-01-01",
        "commit 0123456789ab",
        "4 runs, seeds 0, 100, started from 2030",
        "4 runs trained by `greedy-ensembles`",
        "Target MISSED by greedy",
        "![m-5-radar](m-5-radar.png)",
    ):
        assert part in text, part
    assert {"mnist.md", "study.json", "records", "m-5.csv", "m-5.json", "m-5.tex", "m-5-radar.png"} == {
        file.name for file in path.parent.iterdir()
    }


def test_runs_of_which_no_commit_is_known_are_counted(page):
    unknown = page(mnist(1), figures=lambda job: {"machine": {"git_commit": None}} if job.case.strength else {})
    assert "; commit 0123456789ab, unknown for 2 runs\n" in unknown.read_text()


def test_pages_say_in_what_runs_were_judged(page):
    assert "threads; predictions in float32\n" in page(mnist(1)).read_text()
    rounded = {"judged_in": {"evaluation": "tf32"}}
    assert "threads; predictions in tf32\n" in page(mnist(1), figures=lambda job: rounded).read_text()
    mixed = page(mnist(1), figures=lambda job: rounded if job.case.strength else {})
    told = "threads; predictions of 2 runs of Deep Ensembles in float32, of 2 runs of greedy in tf32\n"
    assert told in mixed.read_text()


def test_what_is_missing_is_listed_with_its_cost(page):
    text = page(mnist(1), but=[3]).read_text()
    # greedy, seed 100: 5 members x 20 epochs x 2 s, as timed on the GPU of the other runs
    assert "**Still missing**: 1 run, about 3.3 min on NVIDIA H200" in text
    assert "greedy, lambda_M = 0.1 (PreResNet8, M = 5), seeds 100: 3.3 min (as timed)" in text


def test_a_section_without_runs_says_so_and_what_it_would_take(page):
    text = page(mnist(0, 1), but=[2, 3, 6, 7]).read_text()
    assert "No run of this section has come to its end." in text
    assert "(as timed)" in text  # in the other section
    assert "one core of here" not in text  # but on the device of the runs that there are


def test_deep_ensembles_of_several_sizes_share_a_training_where_they_do(page):
    together = page(mnist(0, 1)).read_text()
    assert "those of a smaller M are its first members" in together
    assert "- 8 runs of 6 trainings, seeds 0, 100, started from" in together
    assert "60 s of training" in together or "1.0 min of training" in together
    assert "however" not in together

    def later(job):
        again = job.case.size == 5 and job.seed == 100
        return {"machine": {"started": "2031", "device": "cuda:0 (NVIDIA H200), 4 threads"}} if again else {}

    apart = page(mnist(0, 1), figures=later).read_text()
    assert "Of seed 100, however, there are 2 trainings: of M = 3; of M = 5." in apart
    assert "first members" not in page(mnist(1)).read_text()


def test_several_sections_begin_with_a_summary(page):
    text = page(mnist(0, 1)).read_text()
    assert "| M = 3 | Deep Ensembles | 2 | 90.00±0.00 (99.44±0.02) |" in text
    assert text.index("mean AUC, synthetic") < text.index("## M = 3")


def test_a_summary_says_which_means_are_over_fewer_sets(page):
    def few(job):
        return {"areas": {"uniform": 0.5}} if (job.case.size, job.case.strength) == (5, None) else {}

    text = page(mnist(0, 1), figures=few).read_text()
    told = "M = 5: means without dtd."
    assert told in text[: text.index("## M = 3")]
    assert text.count("means without") == 1
    assert told not in page(mnist(0, 1)).read_text()


def test_nor_are_sets_forgotten_that_all_runs_of_a_section_lack(page):
    text = page(mnist(0, 1), figures=lambda job: {"areas": {"uniform": 0.5}} if job.case.size == 5 else {}).read_text()
    assert "M = 5: means without dtd." in text


def test_your_own_reading_is_kept_and_shown(page, tmp_path):
    own = tmp_path / "page" / "reading.md"
    own.parent.mkdir()
    own.write_text("## What I make of it\n\nNot much.\n")
    for _ in range(2):
        text = page(mnist(1)).read_text()
        assert text.endswith("## What I make of it\n\nNot much.\n")
    assert own.read_text() == "## What I make of it\n\nNot much.\n"


def test_the_facts_of_every_run_are_there_and_name_no_path(page):
    path = page(mnist(1), but=[3])
    facts = json.loads((path.parent / "study.json").read_text())
    assert facts["missing"] == ["mnist-PreResNet8-M5-greedy-0.1-seed100"]
    records = [json.loads((path.parent / "records" / f"{name}.json").read_text()) for name in facts["runs"]]
    assert [record["information"]["configuration"]["seed"] for record in records] == [0, 0, 100]
    assert records[0]["seconds"] == 10.0
    assert "somewhere" not in json.dumps([facts, records])


def test_a_page_is_made_again_from_its_own_records(page, tmp_path):
    study = mnist(1)
    before = page(study, but=[3])
    text = before.read_text()
    sections = gather(study, Protocol(), Shelf(tmp_path / "empty", before.parent))
    assert len(sections[0].missing) == 1
    circumstances = Circumstances(["reproduce", "it"], Protocol(), HERE)
    again = write_page(study, sections, tmp_path / "again", circumstances).read_text()
    assert again.partition("## How")[0] == text.partition("## How")[0]


def test_a_cap_on_ood_images_is_told(page):
    assert "at most 7 images of each OOD set" in page(mnist(1), Protocol(ood_images=7)).read_text()


def test_quick_pages_say_that_they_mean_nothing(page):
    assert "mean nothing" in page(mnist(1), Protocol(quick=True)).read_text()


def test_a_curve_is_drawn(page):
    study = mnist(5)
    assert "lambda-m-m-5-curve.png" in page(study).read_text()
    assert (page(study).parent / "lambda-m-m-5-curve.png").exists()


def test_the_curve_has_auc_of_both_kinds(shelf_with):
    study, protocol = mnist(5), Protocol()
    figures = lambda job: {"areas": {"uniform": 1 / (1 + (job.case.strength or 0)), "dtd": 0.6, "omniglot": 0.7}}  # noqa: E731
    (gathered,) = gather(study, protocol, shelf_with(study, protocol, (), figures=figures))
    found = areas(gathered.section, gathered.comparison)
    assert list(found) == ["mean AUC, 1 synthetic sets", "mean AUC, 2 natural sets"]
    for strength, estimate in found["mean AUC, 1 synthetic sets"].items():
        assert estimate.mean == 1 / (1 + (strength or 0))
    assert [estimate.mean for estimate in found["mean AUC, 2 natural sets"].values()] == pytest.approx([0.65] * 7)


def test_overhead_is_told_beside_the_papers(page, record_of):
    study = dataclasses.replace(STUDIES["overhead"], sections=STUDIES["overhead"].sections[:1])

    def times(job):
        if job.case.strength is None:
            return {"epoch_seconds": 2.0}
        return {"epoch_seconds": 3.5, "prediction": {"images": 200, "seconds": 1.01}}

    text = page(study, figures=times).read_text()
    assert "| greedy, lambda_M = 3 | 1 | 3.500 | +75 % | 5.050 |" in text
    assert "18.81 hours for Deep Ensembles, 32.81 for the method, 74.39 % more" in text
    told = "+75.0 % of training time beside Deep Ensembles, where the paper has +74.39 %; +1.0 % of prediction time."
    assert f"- greedy, lambda_M = 3: {told}" in text


def test_overhead_without_deep_ensembles_has_nothing_beside_it(page):
    study = dataclasses.replace(STUDIES["overhead"], sections=STUDIES["overhead"].sections[:1])
    assert "There are no Deep Ensembles to compare with." in page(study, but=[0]).read_text()


def test_corruptions_are_averaged_for_each_severity(page):
    study = dataclasses.replace(STUDIES["robustness"], sections=STUDIES["robustness"].sections[:1], seeds=2)

    def corrupted(job):
        level = 0.1 if job.case.strength is None else 0.2
        return {
            "corruptions": {
                f"{name}/{severity}": {"accuracy": base + level / severity + 0.1 * bool(job.seed), "nll": 0.5}
                for name, base in (("fog", 0.3), ("snow", 0.5))
                for severity in range(1, 6)
            }
        }

    path = page(study, figures=corrupted)
    text = path.read_text()
    assert (path.parent / "preresnet164-m-11-severity.png").exists()
    assert "| 1 | Deep Ensembles | 2 | 55.00±5.00 | 50.00±0.00 |" in text
    assert "| 2 | greedy, lambda_M = 3 | 2 | 55.00±5.00 | 50.00±0.00 |" in text
    assert "2 corruptions (fog, snow)" in text
    told = "is more accurate than Deep Ensembles at 5 of 5 severities; at the last, by +2.00 points, and +0.00 in NLL"
    assert f"greedy, lambda_M = 3 {told}" in text
    assert (
        "CIFAR-10-C" not in text.partition("## How")[0].partition("severity")[2]
    )  # nothing to say of the published set


def test_pages_say_that_corruptions_were_generated(page):
    study = dataclasses.replace(STUDIES["robustness"], sections=STUDIES["robustness"].sections[:1], seeds=1)
    made = {f"imagecorruptions fog/{severity}": {"accuracy": 0.5, "nll": 0.5} for severity in range(1, 6)}
    text = page(study, figures=lambda _: {"corruptions": made}).read_text()
    assert "1 corruption (imagecorruptions fog)" in text
    assert "- the corruptions are generated by the library imagecorruptions" in text
    assert "not CIFAR-10-C" in text


def test_runs_on_other_corruptions_are_not_averaged(page):
    study = dataclasses.replace(STUDIES["robustness"], sections=STUDIES["robustness"].sections[:1], seeds=1)

    def corrupted(job):
        name = "fog" if job.case.strength is None else "imagecorruptions fog"
        return {"corruptions": {f"{name}/{severity}": {"accuracy": 0.5, "nll": 0.5} for severity in range(1, 6)}}

    with pytest.raises(ValueError, match="was judged on other corruptions than"):
        page(study, figures=corrupted)
