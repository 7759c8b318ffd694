"""The rule that chooses p* for images, and its batch (`benchmarks/p_star.py`)."""

import itertools
import json
import statistics
from pathlib import Path

import p_star
import pytest
import torch

from greedy_ensembles.paper.catalogue import BATCHES, STUDIES
from greedy_ensembles.paper.study import OURS
from greedy_ensembles.training.validate import as_examples, default_weighting

RESULTS = Path(__file__).parents[1] / "results"


def candidate(area, validation=0.9, error=0.01):
    """Three seeds with this mean AUC and standard error on the choosing sets."""
    step = error * 3**0.5
    return [p_star.Seed(value, 0.5, validation) for value in (area - step, area, area + step)]


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({"wrap": candidate(0.900), "half": candidate(0.905)}, "wrap"),  # the cheaper, within one standard error
        ({"wrap": candidate(0.900), "half": candidate(0.915)}, "half"),
        ({"wrap": candidate(0.900, error=0.02), "half": candidate(0.915)}, "half"),  # the best one's error counts
        ({"wrap": candidate(0.900), "half": candidate(0.950, 0.897), "scramble": candidate(0.930)}, "scramble"),
        ({"wrap": candidate(0.900), "half": candidate(0.950, 0.899)}, "half"),  # it may lose .001 of accuracy
        ({"wrap": candidate(0.6, 0.8), "half": candidate(0.9, 0.8)}, "wrap"),  # where none learns, the first stays
    ],
)
def test_the_cheapest_of_the_best_candidates_that_learn_is_chosen(found, chosen):
    assert p_star.choose({"deep": candidate(0.5), **found}, errors=0)[0] == chosen


@pytest.mark.parametrize(
    ("best", "chosen"),
    [
        ({"8": (0.900, 0.9), "32": (0.905, 0.9), "128": (0.905, 0.9)}, "8"),  # the smallest, within one standard error
        ({"8": (0.900, 0.9), "32": (0.915, 0.9), "128": (0.920, 0.9)}, "32"),
        ({"8": (0.900, 0.9), "32": (0.990, 0.8), "128": (0.920, 0.9)}, "128"),  # its best one loses accuracy
        ({"8": (0.900, 0.8), "32": (0.990, 0.8), "128": (0.920, 0.8)}, "8"),  # no batch has one that does not
    ],
)
def test_a_batch_is_as_good_as_its_best_candidate_that_learns(best, chosen):
    seeds = {
        batch: {"deep": candidate(0.5), "wrap": candidate(0.8, own[1]), "half": candidate(*own)}
        for batch, own in best.items()
    }
    assert p_star.choose_batch(seeds) == chosen
    content = {"seeds": seeds, "command": "c"}
    assert f"| **{chosen}** | Deep Ensembles |" in p_star.page_of_batches(content).text()


def test_a_loss_of_accuracy_counts_where_it_is_larger_than_chance():
    worse = [p_star.Seed(0.9, 0.5, 0.9 - loss) for loss in (0.0, 0.005, 0.01)]  # .005, standard error .0029
    found = {"deep": candidate(0.5), "wrap": worse, "scramble": candidate(0.8)}
    assert p_star.choose(found, errors=0)[0] == "scramble"
    assert p_star.choose(found, errors=2)[0] == "wrap"


def test_images_have_the_p_star_that_the_rule_chose():
    """Whoever changes the default, or the records, has to look at the other."""
    folder = RESULTS / "default-p-star-small"
    measured = p_star.measured(folder)
    content = json.loads((folder / "records/choice.json").read_text())
    assert content["seeds"] == {name: [list(one) for one in own] for name, own in measured.items()}
    chosen, _ = p_star.choose(measured, content["errors"])
    for images in (torch.randint(256, (8, 3, 4, 4), dtype=torch.uint8), torch.rand(8, 3, 4, 4)):
        weighting = default_weighting(None, as_examples((images, torch.arange(8) % 2)))
        assert (type(weighting).__name__, weighting.overflow, chosen) == ("Gaussian", "wrap", "wrap")


def test_the_batch_of_ours_is_the_one_that_no_missing_run_can_change():
    """Two runs with 128 samples are missing; what the page says of them, and of the others, is in the records."""
    told = " ".join((RESULTS / "p-star-batch/records/reading.md").read_text().split())
    sections = zip(BATCHES, STUDIES["p-star-batch"].sections, strict=True)
    seeds = {str(batch): p_star.of_section(RESULTS / "p-star-batch", section) for batch, section in sections}
    means = {
        (batch, name): statistics.fmean(one.choosing for one in own)
        for batch, of_batch in seeds.items()
        for name, own in of_batch.items()
    }
    best = {batch: max(mean for (each, _), mean in means.items() if each == batch) for batch in seeds}
    spelled = [f"{best[batch]:.4f}".removeprefix("0") for batch in ("8", "32", "128")]
    assert "the best p\\* has {} with 8 samples, {} with 32 and {} with 128".format(*spelled) in told
    largest = max(one.choosing for own in seeds.values() for each in own.values() for one in each)
    assert "no run has .981" in told
    assert largest < 0.981
    for name in ("half", "scramble"):
        gain = f"{means['32', name] - means['8', name]:.3f}".removeprefix("0")
        assert f"{'half of each gains' if name == 'half' else 'scrambled images'} {gain}" in told
    lacking = [name for name, own in seeds["128"].items() if len(own) < 3]
    assert lacking == ["half", "scramble"]
    assert "half and scrambled images with 128 samples lack a seed each" in told

    def with_both(half, scramble):
        found = {"half": half, "scramble": scramble}
        added = {name: [p_star.Seed(found[name], 0.5, 0.92)] for name in lacking}
        of_128 = {name: own + added.get(name, []) for name, own in seeds["128"].items()}
        return p_star.choose_batch({**seeds, "128": of_128})

    likely = itertools.product((0.5, 0.9, 0.97, 0.98, 1.0), (0.5, 0.97, 0.98, 0.9896))
    assert {with_both(*pair) for pair in likely} == {"32"}
    assert with_both(0.97, 0.99) == "8"
    assert "Only a run of scrambled images above .9896 could change the choice" in told
    assert OURS["weighting_batch"] == 32
