import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison, Evaluation, InDomain, Method, OutOfDistribution, paper
from greedy_ensembles.benchmark.comparison import Setting
from greedy_ensembles.report.evaluation import to_markdown

NONE = np.empty(0)


def evaluation(area, note=""):
    inside = InDomain("mnist", 100, note, 0.99, 0.02, 0.2, 0.01, 0.02, NONE)
    sets = (("dtd", "natural", area / 2), ("uniform", "synthetic", area))
    ood = tuple(OutOfDistribution(name, kind, 50, "", a, a, 1 - a, NONE) for name, kind, a in sets)
    return Evaluation("mutual_information", 5, inside, ood, ("omniglot",))


@pytest.fixture
def text():
    setting = Setting("PreResNet8", "mnist", 5, "greedy", 0.1)
    methods = (
        Method("Deep Ensembles", (evaluation(0.4, "half"), evaluation(0.6, "half")), (0, 5)),
        Method("greedy", (evaluation(0.9, "half"),), (0,), setting),
    )
    return to_markdown(Comparison(methods, ("mind this",), published=paper))


def test_figures_stand_by_set_and_method_with_the_papers_in_brackets(text):
    assert "| uniform, 50 images | synthetic | 0.500±0.100 | 0.900 (1.00) |" in text
    assert "| greedy | 1 | 99.00 (99.46±0.01) | 2.00 (1.72±0.02) |" in text


def test_synthetic_sets_come_before_natural_ones_and_means_last(text):
    area = text[text.index("**AUC**") : text.index("**AP**")]
    places = [
        area.index(f"| {name}") for name in ("uniform", "dtd", "omniglot", "mean of 1 synthetic", "mean of 2 of 3")
    ]
    assert places == sorted(places)


def test_counts_notes_and_holes_are_there(text):
    for part in (
        "mnist, 100 images (a):",
        "(a) half",
        "| omniglot | missing |  |  |",
        "missing: omniglot",
        "mind this",
    ):
        assert part in text
    assert "differs" not in text


def test_every_table_has_as_many_cells_in_each_line(text):
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 4
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1
