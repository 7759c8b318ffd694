import dataclasses

import pytest

from greedy_ensembles.paper.cost import Device
from greedy_ensembles.paper.page_tables import (
    corruption_table,
    missing_table,
    overhead_table,
    runs_table,
    summary_table,
    targets_table,
)
from greedy_ensembles.paper.records import gather
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Protocol, Target

DEEP = {"uniform": 0.5, "gaussian": 0.7, "dtd": 0.8, "mine": 0.9}
GREEDY = {"uniform": 0.9, "gaussian": 0.704, "dtd": 0.6, "mine": 0.95}


def cells(table):
    """Return the rows of a Markdown table as lists of text."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:] if line[:1] == "|"]


@pytest.fixture
def gathered(records_with):
    def make(study, but=(), protocol=None, figures=lambda job: {}):
        protocol = protocol or Protocol()
        return gather(study, protocol, records_with(study, protocol, but, figures))

    return make


def part(name, *sections, seeds=2):
    study = STUDIES[name].with_cases(lambda case: [] if case.ours else [case])
    return dataclasses.replace(study, sections=tuple(study.sections[number] for number in sections), seeds=seeds)


@pytest.fixture
def outcomes(gathered, tiny):
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


def test_the_summary_has_every_section_and_says_over_how_many_sets_its_means_are(gathered):
    def few(job):
        return {"areas": {"uniform": 0.5}} if (job.case.size, job.case.strength) == (5, None) else {}

    rows = {(row[0], row[1]): row[2:] for row in cells(summary_table(gathered(part("mnist", 0, 1), figures=few)))}
    deep = rows["M = 3", "Deep Ensembles"]
    assert deep[:2] == ["2", "90.00±0.00 (99.44±0.02)"]
    assert deep[-1] == "2"
    assert rows["M = 5", "Deep Ensembles"][-1] == rows["M = 5", "greedy, lambda_M = 0.1"][-1] == "1 of 2"


def test_the_summary_has_auc_and_fpr95_and_names_stand_ins(gathered, record_of):
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


def test_overhead_is_told_beside_the_papers(gathered):
    def times(job):
        if job.case.strength is None:
            return {"epoch_seconds": 2.0}
        return {"epoch_seconds": 3.5, "prediction": {"images": 200, "seconds": 1.01}}

    rows = cells(overhead_table(gathered(part("overhead", 0, seeds=1), figures=times)))
    assert rows[1] == ["PreResNet164, M = 11", "greedy, lambda_M = 3", "1", "3.500", "+75.0 %", "+74.39 %", "5.050"]
    alone = gathered(part("overhead", 1, seeds=1), but=[0], figures=times)
    assert cells(overhead_table(alone))[0][4] == ""  # nothing to compare with


def corrupted(name="fog", other="snow"):
    def figures(job):
        level = 0.1 if job.case.strength is None else 0.2
        return {
            "corruptions": {
                f"{kind}/{severity}": {
                    "accuracy": base + level / severity + 0.1 * bool(job.seed),
                    "nll": 0.5,
                    "ace": 0.02,
                    "mi": 0.25,
                }
                for kind, base in ((name, 0.3), (other, 0.5))
                for severity in range(1, 6)
            }
        }

    return figures


def test_corruptions_are_averaged_for_each_severity(gathered):
    (section,) = gathered(part("robustness", 0), figures=corrupted())
    text = corruption_table(section)
    assert ["1", "Deep Ensembles", "2", "55.00±5.00", "50.00±0.00", "2.00±0.00", "0.250±0.000"] in cells(text)
    assert ["2", "greedy, lambda_M = 3", "2", "55.00±5.00", "50.00±0.00", "2.00±0.00", "0.250±0.000"] in cells(text)
    assert "2 corruptions (fog, snow)" in text
    assert "CIFAR-10-C" not in text  # nothing to say of the published set


def test_generated_corruptions_are_not_passed_for_the_published_ones(gathered):
    made = corrupted("imagecorruptions fog", "imagecorruptions snow")
    (section,) = gathered(part("robustness", 0), figures=made)
    assert "not CIFAR-10-C" in corruption_table(section)


def test_runs_on_other_corruptions_are_not_averaged(gathered):
    mixed = lambda job: corrupted("fog" if job.case.strength is None else "imagecorruptions fog")(job)  # noqa: E731
    (section,) = gathered(part("robustness", 0), figures=mixed)
    with pytest.raises(ValueError, match="was judged on other corruptions than"):
        corruption_table(section)


def test_what_is_missing_is_listed_with_its_cost(gathered):
    sections = gathered(part("mnist", 1), but=[3])
    device = Device("cuda", "NVIDIA H200")
    rows = cells(missing_table(sections, sections[0].done, device))
    # greedy, seed 100: 5 members x 20 epochs x 2 s, as timed on the GPU of the other runs
    assert rows[0] == ["M = 5", "greedy, lambda_M = 0.1", "100", "3.3 min"]
    assert rows[1][2:] == ["runs: 1", "3.3 min"]
    assert missing_table(gathered(part("mnist", 1)), {}, device) == ""


def test_runs_that_are_alike_share_a_row(gathered):
    def figures(job):
        unknown = {"machine": {"git_commit": None, "started": "2031"}, "judged_in": {"evaluation": "tf32"}}
        return unknown if job.case.strength and job.seed else {}

    (section,) = gathered(part("mnist", 1), figures=figures)
    three, one = cells(runs_table(section.done))
    assert (three[0], three[3], three[5]) == ("3", "float32", "0123456789ab")
    assert (three[1], three[2]) == ("`greedy-ensembles`", "cuda:0 (NVIDIA H200), 4 threads")
    assert three[-1] == "30 s"
    assert (one[0], one[3], one[5]) == ("1", "tf32", "unknown")


def test_a_training_that_several_sizes_share_is_paid_for_once(gathered):
    sections = gathered(part("mnist", 0, 1))
    records = {job: record for section in sections for job, record in section.done.items()}
    (row,) = cells(runs_table(records))
    assert (row[0], row[-1]) == ("8", "1.0 min")  # 6 trainings of 10 s
