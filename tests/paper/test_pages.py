import dataclasses
import json

import pytest

from greedy_ensembles.benchmark import Estimate
from greedy_ensembles.paper.cost import Device
from greedy_ensembles.paper.pages import draw_severities, mean_areas, write_page
from greedy_ensembles.paper.records import Records, gather
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Protocol, filter_study

HERE = Device("cpu", "here")


@pytest.fixture
def page(tmp_path, records_with):
    def write(study, protocol=None, but=(), **options):
        protocol = protocol or Protocol()
        sections = gather(study, protocol, records_with(study, protocol, but, **options))
        return write_page(study, protocol, sections, tmp_path / "page", ["reproduce", "it"], HERE)

    return write


def mnist(*sections, seeds=2):
    two = STUDIES["mnist"].with_cases(lambda case: [] if case.ours else [case])
    return dataclasses.replace(two, sections=tuple(two.sections[i] for i in sections), seeds=seeds)


def test_a_page_has_figures_beside_the_papers_and_how_they_were_made(page):
    path = page(mnist(1), figures=lambda job: {"areas": {"uniform": 0.9, "dtd": 0.6, "omniglot": 0.95}})
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


def test_what_is_missing_is_priced_on_the_device_of_the_runs_that_there_are(page):
    text = page(mnist(0, 1), but=[2, 3, 6, 7]).read_text()
    assert "## M = 5" not in text  # none of its runs is done
    missing = text.partition("## Missing with these settings")[2]
    assert "M = 5" in missing
    assert "one core of here" not in missing


def test_what_diverged_is_told(page):
    diverged = lambda job: {"message": "it left"} if job.case.strength else {}  # noqa: E731
    text = page(mnist(1), figures=diverged).read_text()
    assert "| mnist-PreResNet8-M5-greedy-0.1-seed100 | it left |" in text.partition("## Diverged")[2]
    assert "Missing with these settings" not in text


def test_your_own_reading_stands_first_and_is_kept(page, tmp_path):
    own = tmp_path / "page" / "records" / "reading.md"
    own.parent.mkdir(parents=True)
    own.write_text("Not much.\n")
    for _ in range(2):
        assert page(mnist(1)).read_text().startswith("# MNIST\n\nNot much.\n\n| ")
    assert own.read_text() == "Not much.\n"
    own.write_text("# Mine\n\nThe answer.\n\n## Why\n\nThe rest.\n")
    text = page(mnist(1)).read_text()
    assert text.startswith("# Mine\n\nThe answer.\n\n| ")
    assert text.index("FPR95, natural") < text.index("## Why\n\nThe rest.\n\n## Targets")
    own.write_text("## Why\n\nThe rest.\n")  # without an answer
    text = page(mnist(1)).read_text()
    assert text.startswith("# MNIST\n\n| ")
    assert text.index("FPR95, natural") < text.index("## Why\n\nThe rest.\n\n## Targets")


def test_the_facts_of_every_run_are_there_and_name_no_path(page):
    path = page(mnist(1), but=[3])
    facts = json.loads((path.parent / "records" / "study.json").read_text())
    assert facts["missing"] == ["mnist-PreResNet8-M5-greedy-0.1-seed100"]
    records = [json.loads((path.parent / "records" / f"{name}.json").read_text()) for name in facts["runs"]]
    assert [record["information"]["configuration"]["seed"] for record in records] == [0, 0, 100]
    assert records[0]["seconds"] == 10.0
    assert "somewhere" not in json.dumps([facts, records])


def test_a_page_is_made_again_from_its_own_records(page, tmp_path):
    study = mnist(1)
    before = page(study, but=[3])
    sections = gather(study, Protocol(), Records(tmp_path / "empty", before.parent))
    assert len(sections[0].missing) == 1
    again = write_page(study, Protocol(), sections, tmp_path / "again", ["reproduce", "it"], HERE)
    assert again.read_text() == before.read_text()


def test_quick_pages_say_that_they_mean_nothing(page):
    assert "mean nothing" in page(mnist(1), Protocol(quick=True)).read_text()


def test_a_curve_is_drawn(page):
    path = page(mnist(6))
    assert "(lambda-m-m-5-curve.png)" in path.read_text()
    assert (path.parent / "lambda-m-m-5-curve.png").exists()


def test_no_line_goes_through_two_points(page):
    study = mnist(6)
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


def test_the_curve_has_auc_of_both_kinds(records_with):
    study, protocol = mnist(6), Protocol()
    figures = lambda job: {"areas": {"uniform": 1 / (1 + (job.case.strength or 0)), "dtd": 0.6, "omniglot": 0.7}}  # noqa: E731
    (gathered,) = gather(study, protocol, records_with(study, protocol, (), figures=figures))
    strengths = {gathered.section.label(case): case.strength for case in gathered.section.cases}
    found = mean_areas(gathered.comparison, strengths)
    assert list(found) == ["mean AUC, 1 synthetic sets", "mean AUC, 2 natural sets"]
    for strength, estimate in found["mean AUC, 1 synthetic sets"].items():
        assert estimate.mean == 1 / (1 + (strength or 0))
    assert [estimate.mean for estimate in found["mean AUC, 2 natural sets"].values()] == pytest.approx([0.65] * 7)


def test_studies_of_times_and_of_corruptions_have_their_pages(page):
    overhead = dataclasses.replace(STUDIES["overhead"], sections=STUDIES["overhead"].sections[:1])
    assert "+74.39 %" in page(overhead).read_text()
    robustness = dataclasses.replace(STUDIES["robustness"], sections=STUDIES["robustness"].sections[:1], seeds=1)
    made = {f"fog/{severity}": dict.fromkeys(("accuracy", "nll", "ace", "mi"), 0.5) for severity in range(1, 6)}
    path = page(robustness, figures=lambda _: {"corruptions": made})
    assert (path.parent / "preresnet164-m-11-severity.png").exists()


def at_severities(start, error=0.01, seeds=3):
    return {
        name: [Estimate(start - 0.1 * severity, error, seeds) for severity in range(5)]
        for name in ("accuracy", "nll", "ace", "mi")
    }


def test_every_method_is_a_line_over_severities_with_its_bars():
    figure = draw_severities({"Deep Ensembles": at_severities(0.9), "greedy": at_severities(0.8)})
    for axis, factor in zip(figure.axes, (100, 1, 100, 1), strict=True):  # accuracy, NLL, ACE, MI
        for container, start in zip(axis.containers, (0.9, 0.8), strict=True):
            line, _, (bars,) = container
            assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
            assert line.get_ydata() == pytest.approx([factor * (start - 0.1 * severity) for severity in range(5)])
            low, high = bars.get_segments()[0][:, 1]
            assert high - low == pytest.approx(2 * factor * 0.01)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Deep Ensembles", "greedy"]
