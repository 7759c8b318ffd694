import dataclasses
import json

import pytest

from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.cost import Device
from greedy_ensembles.paper.pages import missing_table, runs_table, summary_table, targets_table, write_page
from greedy_ensembles.paper.records import Records, gather
from greedy_ensembles.paper.study import Protocol, Target, filter_study

HERE = Device("cpu", "here")


@pytest.fixture
def page(tmp_path, records_with):
    def write(study, protocol=None, but=(), **options):
        protocol = protocol or Protocol()
        sections = gather(study, protocol, records_with(study, protocol, but, **options))
        return write_page(study, protocol, sections, tmp_path / "page", ["reproduce", "it"], HERE)

    return write


def test_a_page_has_figures_beside_the_papers_and_how_they_were_made(page, part):
    path = page(part("mnist", 1), figures=lambda job: {"areas": {"uniform": 0.9, "dtd": 0.6, "omniglot": 0.95}})
    text = path.read_text()
    for part in (
        "as in the paper",
        "90.00±0.00 (99.46±0.01)",  # accuracy, ours and the paper's
        "| uniform, 50 images | synthetic |",
        "0.900±0.000 (1.00)",
        "mean of 2 natural",
        "`reproduce it`",
        "NVIDIA H200",
        "2030-01-01",
        "| missed |",
    ):
        assert part in text, part
    assert {"mnist.md", "records"} == {file.name for file in path.parent.iterdir()}
    assert {"study.json", "m-5.csv", "m-5.json", "m-5.tex"} < {
        file.name for file in (path.parent / "records").iterdir()
    }


def test_what_is_missing_is_priced_on_the_device_of_the_runs_that_there_are(page, part):
    text = page(part("mnist", 0, 1), but=[2, 3, 6, 7]).read_text()
    assert "## M = 5" not in text  # none of its runs is done
    missing = text.partition("## Missing with these settings")[2]
    assert "M = 5" in missing
    assert "one core of here" not in missing


def test_what_diverged_is_told(page, part):
    diverged = lambda job: {"message": "it left"} if job.case.strength else {}  # noqa: E731
    text = page(part("mnist", 1), figures=diverged).read_text()
    assert "| mnist-PreResNet8-M5-greedy-0.1-seed100 | it left |" in text.partition("## Diverged")[2]
    assert "Missing with these settings" not in text


def test_your_own_reading_stands_first_and_is_kept(page, tmp_path, part):
    own = tmp_path / "page" / "records" / "reading.md"
    own.parent.mkdir(parents=True)
    own.write_text("Not much.\n")
    for _ in range(2):
        assert page(part("mnist", 1)).read_text().startswith("# MNIST\n\nNot much.\n\n| ")
    assert own.read_text() == "Not much.\n"
    own.write_text("# Mine\n\nThe answer.\n\n## Why\n\nThe rest.\n")
    text = page(part("mnist", 1)).read_text()
    assert text.startswith("# Mine\n\nThe answer.\n\n| ")
    assert text.index("FPR95, natural") < text.index("## Why\n\nThe rest.\n\n## Targets")
    own.write_text("## Why\n\nThe rest.\n")  # without an answer
    text = page(part("mnist", 1)).read_text()
    assert text.startswith("# MNIST\n\n| ")
    assert text.index("FPR95, natural") < text.index("## Why\n\nThe rest.\n\n## Targets")


def test_the_facts_of_every_run_are_there_and_name_no_path(page, part):
    path = page(part("mnist", 1), but=[3])
    facts = json.loads((path.parent / "records" / "study.json").read_text())
    assert facts["missing"] == ["mnist-PreResNet8-M5-greedy-0.1-seed100"]
    records = [json.loads((path.parent / "records" / f"{name}.json").read_text()) for name in facts["runs"]]
    assert [record["information"]["configuration"]["seed"] for record in records] == [0, 0, 100]
    assert records[0]["seconds"] == 10.0
    assert "somewhere" not in json.dumps([facts, records])


def test_a_page_is_made_again_from_its_own_records(page, tmp_path, part):
    study = part("mnist", 1)
    before = page(study, but=[3])
    sections = gather(study, Protocol(), Records(tmp_path / "empty", before.parent))
    assert len(sections[0].missing) == 1
    again = write_page(study, Protocol(), sections, tmp_path / "again", ["reproduce", "it"], HERE)
    assert again.read_text() == before.read_text()


def test_quick_pages_say_that_they_mean_nothing(page, part):
    assert "mean nothing" in page(part("mnist", 1), Protocol(quick=True)).read_text()


def test_a_curve_is_drawn(page, part):
    path = page(part("mnist", 6))
    assert "(lambda-m-m-5-curve.png)" in path.read_text()
    assert (path.parent / "lambda-m-m-5-curve.png").exists()


def test_no_line_goes_through_two_points(page, part):
    study = part("mnist", 6)
    few = study.with_cases(lambda case: [case] if case.strength in (None, 0.1, 1.0) else [])
    assert "curve.png" not in page(few).read_text()


def test_radar_plots_are_drawn_where_the_paper_has_them(page):
    areas = {"uniform": 0.9, "dtd": 0.6, "svhn": 0.95}
    drawn = {
        name: "radar.png"
        in page(
            filter_study(STUDIES[name], models=["VGG16BN"], seeds=1), figures=lambda _: {"areas": areas}
        ).read_text()
        for name in ("cifar10", "cifar100")
    }
    assert drawn == {"cifar10": False, "cifar100": True}


def test_studies_of_times_and_of_corruptions_have_their_pages(page):
    overhead = dataclasses.replace(STUDIES["overhead"], sections=STUDIES["overhead"].sections[:1])
    assert "+74.39 %" in page(overhead).read_text()
    robustness = dataclasses.replace(STUDIES["robustness"], sections=STUDIES["robustness"].sections[:1], seeds=1)
    made = {f"fog/{severity}": dict.fromkeys(("accuracy", "nll", "ace", "mi"), 0.5) for severity in range(1, 6)}
    path = page(robustness, figures=lambda _: {"corruptions": made})
    assert (path.parent / "preresnet164-m-11-severity.png").exists()


DEEP = {"uniform": 0.5, "gaussian": 0.7, "dtd": 0.8, "mine": 0.9}


GREEDY = {"uniform": 0.9, "gaussian": 0.704, "dtd": 0.6, "mine": 0.95}


@pytest.fixture
def outcomes(gathered, tiny, cells):
    """Return the methods, figures and outcomes of a target under known figures."""

    def judged(*targets, deep=DEEP, greedy=GREEDY, but=()):
        def figures(job):
            areas, accuracy = (deep, 0.9) if job.case.strength is None else (greedy, 0.91)
            return {"areas": areas, "accuracy": accuracy}

        section = dataclasses.replace(tiny.sections[0], targets=targets)
        study = dataclasses.replace(tiny, sections=(section,))
        return [row[2:] for row in cells(targets_table(gathered(study, but, figures=figures)))]

    return judged


@pytest.mark.parametrize(
    ("target", "outcome"),
    [
        (Target("auc", ("uniform", "mine"), least=0.9), "reached"),
        (Target("auc", ("uniform", "dtd"), least=0.9), "missed"),
        (Target("auc", ("elsewhere",), least=0.9), "not known"),
        (Target("auc", ("uniform", "elsewhere"), least=0.9), "not known"),
        (Target("auc", ("dtd", "elsewhere"), least=0.9), "missed"),
        (Target("auc", gain=0.06), "reached"),
        (Target("auc", gain=0.07), "missed"),
        (Target("accuracy", least=0.91), "reached"),
        (Target("accuracy", least=0.92), "missed"),
        (Target("accuracy", gain=-0.002), "reached"),
        (Target("nll", gain=-0.003), "reached"),  # the same
        (Target("nll", gain=0.001), "missed"),
        (Target("auc", ("uniform", "dtd"), gain=0.09, mean=True), "reached"),  # +.4 and -.2
        (Target("auc", ("uniform", "dtd"), gain=0.11, mean=True), "missed"),
        (Target("auc", ("uniform", "elsewhere"), gain=0.0, mean=True), "not known"),
        (Target("auc_predictive_entropy", ("uniform",), gain=0.0, mean=True), "not known"),  # older records lack it
    ],
)
def test_targets_are_reached_or_missed(outcomes, target, outcome):
    method, _, found = outcomes(target)[-1]
    assert (method, found) == ("greedy, lambda_M = 1", outcome)


def test_a_mean_without_sets_that_some_have_reaches_no_target_of_all_sets(outcomes):
    few = {name: area for name, area in GREEDY.items() if name != "dtd"}
    targets = Target("auc", gain=0.0), Target("auc", gain=0.9), Target("auc", ("uniform",), least=0.9)
    over, under, single = outcomes(*targets, greedy=few)
    assert over[1:] == ["mean of 3 of 4 sets +0.1513, no dtd", "not known"]
    assert under[2] == "not known"
    assert single[2] == "reached"


def test_an_accuracy_is_asked_of_deep_ensembles_too(outcomes):
    found = {method: outcome for method, _, outcome in outcomes(Target("accuracy", least=0.905))}
    assert found == {"Deep Ensembles": "missed", "greedy, lambda_M = 1": "reached"}


def test_without_deep_ensembles_no_gain_is_known(outcomes):
    assert outcomes(Target("auc", gain=0.0), but=[0, 2])[-1][2] == "not known"


def test_the_summary_has_every_section_and_says_over_how_many_sets_its_means_are(gathered, cells, part):
    def few(job):
        return {"areas": {"uniform": 0.5}} if (job.case.size, job.case.strength) == (5, None) else {}

    rows = {(row[0], row[1]): row[2:] for row in cells(summary_table(gathered(part("mnist", 0, 1), figures=few)))}
    deep = rows["M = 3", "Deep Ensembles"]
    assert deep[:2] == ["2", "90.00±0.00 (99.44±0.02)"]
    assert deep[-1] == "2"
    assert rows["M = 5", "Deep Ensembles"][-1] == rows["M = 5", "greedy, lambda_M = 0.1"][-1] == "1 of 2"


def test_the_summary_has_auc_and_fpr95_and_names_stand_ins(gathered, record_of, cells, part):
    def noted(job):
        record = record_of(job)
        ood = [{**one, "note": "a stand-in" if one["name"] == "dtd" else ""} for one in record.evaluation["ood"]]
        return {"evaluation": {**record.evaluation, "ood": ood}}

    text = summary_table(gathered(part("mnist", 1), figures=noted))
    (deep, *_), titles = cells(text), text.splitlines()[0]
    assert "AUC, synthetic | AUC, natural | FPR95, natural" in titles
    assert [cell.partition("±")[0] for cell in deep[5:8]] == ["0.800", "0.600", "0.400"]
    assert "\n- dtd: a stand-in" in text
    assert "- uniform" not in text


def test_what_is_missing_is_listed_with_its_cost(gathered, cells, part):
    sections = gathered(part("mnist", 1), but=[3])
    device = Device("cuda", "NVIDIA H200")
    rows = cells(missing_table(sections, sections[0].done, device))
    # greedy, seed 100: 5 members x 20 epochs x 2 s, as timed on the GPU of the other runs
    assert rows[0] == ["M = 5", "greedy, lambda_M = 0.1", "100", "3.3 min"]
    assert rows[1][2:] == ["runs: 1", "3.3 min"]
    assert missing_table(gathered(part("mnist", 1)), {}, device) == ""


def test_runs_that_are_alike_share_a_row(gathered, cells, part):
    def figures(job):
        unknown = {"machine": {"git_commit": None, "started": "2031"}, "judged_in": {"evaluation": "tf32"}}
        return unknown if job.case.strength and job.seed else {}

    (section,) = gathered(part("mnist", 1), figures=figures)
    three, one = cells(runs_table(section.done))
    assert (three[0], three[3], three[5]) == ("3", "float32", "0123456789ab")
    assert (three[1], three[2]) == ("`greedy-ensembles`", "cuda:0 (NVIDIA H200), 4 threads")
    assert three[-1] == "30 s"
    assert (one[0], one[3], one[5]) == ("1", "tf32", "unknown")


def test_a_training_that_several_sizes_share_is_paid_for_once(gathered, cells, part):
    sections = gathered(part("mnist", 0, 1))
    records = {job: record for section in sections for job, record in section.done.items()}
    (row,) = cells(runs_table(records))
    assert (row[0], row[-1]) == ("8", "1.0 min")  # 6 trainings of 10 s
