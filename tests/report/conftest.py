import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison, Evaluation, InDomain, Method, OutOfDistribution
from greedy_ensembles.benchmark.runs import Setting
from greedy_ensembles.paper import published


@pytest.fixture
def comparison():
    """Two methods, the first with two seeds and a place in the paper; names and notes that LaTeX takes for commands."""

    def evaluation(shift):
        inside = InDomain("mnist", 100, "", 0.9 + shift, 0.25, 0.2, 0.011, 0.02, np.linspace(0, 1, 100))
        outside = (
            OutOfDistribution("uniform", "synthetic", 25_000, "", 0.8 + shift, 0.7, 0.5, np.ones(25)),
            OutOfDistribution("fashion_mnist", "natural", 9_000, "50 % of it & no more", 0.6, 0.5, 0.9, np.ones(9)),
        )
        return Evaluation("mutual_information", 5, inside, outside, ("dtd",))

    deep = Method(
        "Deep Ensembles",
        (evaluation(0.0), evaluation(0.02)),
        (0, 5),
        Setting("PreResNet8", "mnist", 5, "deep"),
        ("runs/a_0", "runs/a_5"),
        "PreResNet8",
    )
    mine = Method("mine", (evaluation(0.1),), (0,), architecture="PreResNet8")
    return Comparison((deep, mine), ("trained on a part",), published=published)
