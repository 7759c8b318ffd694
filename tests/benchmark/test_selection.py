import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import greedy_ensembles as ge
from greedy_ensembles.benchmark import RunFacts
from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.benchmark.runs import check_strength_alone_differs, group
from greedy_ensembles.benchmark.selection import Trial, choose
from greedy_ensembles.benchmark.stored_runs import facts_of, held_out, training_images


def trial(strength, accuracy=0.9, error=0.01, nll=0.3, ace=0.02, seeds=3, **more):
    figures = (Estimate(mean, error, seeds) for mean in (accuracy, nll, ace))
    return Trial(strength, *figures, **more)


def test_the_largest_that_reaches_deep_ensembles():
    trials = [trial(3.0, 0.875), trial(0.1, 0.91), trial(None, 0.90), trial(5.0, 0.882), trial(7.0, 0.878)]
    found = choose(trials)
    # The reference goes down to .89. Of .885 + .01, .92, .892 and .888 the second and third reach it.
    assert found.harmless == (0.1, 5.0)
    assert found.strength == 5.0  # though 3, below it, did harm
    assert [each.strength for each in found.trials] == [0.1, 3.0, 5.0, 7.0]
    assert found.deep.strength is None


def test_touching_is_enough():
    assert choose([trial(None, 0.5, error=0.125), trial(1.0, 0.25, error=0.125)]).strength == 1.0
    assert choose([trial(None, 0.5, error=0.125), trial(1.0, 0.2499, error=0.125)]).strength is None


@pytest.mark.parametrize("by", ["nll", "ace"])
def test_lower_is_better_for_the_others(by):
    trials = [trial(None, **{by: 0.30}), trial(1.0, **{by: 0.05}), trial(3.0, **{by: 0.315}), trial(5.0, **{by: 0.33})]
    assert choose(trials, by).harmless == (1.0, 3.0)
    assert choose(trials, "accuracy").strength == 5.0  # which is the same for all


def test_better_than_deep_ensembles_is_no_harm():
    """The paper's words, overlap of intervals, would refuse what is clearly better."""
    assert choose([trial(None, 0.5), trial(1.0, 0.9)]).strength == 1.0


def test_a_strength_that_breaks_a_member_is_not_chosen_however_good_the_ensemble():
    known = {"examples": 200, "chance": 0.2}
    deep = trial(None, 0.98, members=((0.98, 0.97, 0.98), (0.97, 0.98, 0.99)), **known)
    calm = trial(1.0, 0.98, members=((0.98, 0.94, 0.98), (0.97, 0.98, 0.95)), **known)
    hard = trial(9.0, 0.99, members=((0.98, 0.97, 0.98), (0.97, 0.67, 0.99)), **known)
    found = choose([deep, calm, hard])
    assert (found.strength, found.harmless) == (1.0, (1.0,))
    assert found.harms == {9.0: "member 2 of repetition 2 is right on 67.00%, and those of Deep Ensembles on 98.00%"}
    assert found.harms[9.0] in found.verdict


def test_a_larger_one_that_diverged_was_tried():
    found = choose([trial(None), trial(1.0)])
    larger, smaller = (replace(found, harms={strength: "it diverged"}) for strength in (9.0, 0.1))
    assert larger.strength == smaller.strength == 1.0
    assert "a larger one may do as well" not in larger.verdict
    assert "a larger one may do as well" in smaller.verdict


@pytest.mark.parametrize(("accuracy", "chance", "chosen"), [(0.2, 0.1, None), (0.52, 0.5, None), (0.6, 0.5, 1.0)])
def test_nothing_is_chosen_where_deep_ensembles_learnt_next_to_nothing(accuracy, chance, chosen):
    found = choose([trial(strength, accuracy, examples=1000, chance=chance) for strength in (None, 1.0)])
    assert found.strength == chosen
    assert ("does no harm" in found.verdict) == (chosen is not None)
    assert bool(found.failure) == (chosen is None)


def test_an_infinite_likelihood_is_harm():
    bad = Trial(1.0, Estimate(0.9, 0.01, 2), Estimate(math.inf, None, 2), Estimate(0.02, 0.01, 2))
    assert choose([trial(None, seeds=2), bad], "nll").strength is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.2)), min_size=2, max_size=6))
def test_against_the_rule_in_other_words(figures):
    (mean, error), *others = figures
    trials = [trial(None, mean, error), *(trial(float(k + 1), m, e) for k, (m, e) in enumerate(others))]
    expected = None
    for k, (m, e) in enumerate(others):
        if not m + e < mean - error:
            expected = float(k + 1)
    assert choose(trials).strength == expected


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([trial(1.0)], "Deep Ensembles"),
        ([trial(None)], "other strengths"),
        ([trial(None), trial(None), trial(1.0)], "once"),
        ([trial(None), trial(1.0), trial(1.0)], "other strengths"),
        ([trial(None), trial(1.0, error=None, seeds=1)], "lambda_M = 1 has 1 seed; a standard error needs at least 2"),
        ([trial(None, error=None, seeds=1), trial(1.0)], "Deep Ensembles has 1 seed"),
    ],
)
def test_bad_input(trials, message):
    with pytest.raises(ValueError, match=message):
        choose(trials)


def test_unknown_criteria_are_refused():
    with pytest.raises(ValueError, match="by must be one of 'accuracy', 'nll', 'ace'"):
        choose([trial(None), trial(1.0)], "brier")


@pytest.fixture
def root(tmp_path, write_mnist):
    """A data folder with 80 images of MNIST, in the published format."""
    write_mnist(tmp_path / "data" / "mnist", "train", 80, 0)
    return tmp_path / "data"


class Linear(ge.models.MLP):
    def __init__(self):
        super().__init__(784, (), 10)

    def forward(self, x):
        return super().forward(x.flatten(1))


@pytest.fixture
def trained(root, tmp_path):
    """A run on the first images, with what its members saw in training recorded."""

    def make(count=60, seed=3, validation=0.25):
        data = ge.data.load("mnist", "train", root)
        data = data.replace(images=data.images[:count], labels=data.labels[:count]).with_note("the first")
        seen = []

        def record(batch):
            seen.extend(batch.clone())
            return batch

        recipe = ge.Recipe(epochs=1, batch_size=16, augment=record)
        folder = tmp_path / f"run-{seed}"
        ge.fit(Linear, data, size=1, method="deep", recipe=recipe, seed=seed, validation=validation,
               run_dir=folder, progress=False, device="cpu")  # fmt: skip
        return facts_of(ge.load_run(folder, Linear)), np.stack(seen)

    return make


def pictures(images):
    return {np.asarray(image).astype(np.uint8).tobytes() for image in images}


def test_held_out_is_what_no_member_was_trained_on(trained, root):
    facts, seen = trained()
    images = training_images(facts, root)
    assert len(images) == 60
    part = held_out(facts, images)
    assert len(part) == 15
    assert part.note == "partial: 80 of 60,000 images, in 10 classes; the first"
    epoch = seen[-45:]  # before it, two images were tried to see whether all fits together
    trained_on = pictures(np.rint(255 * epoch)) if seen.max() <= 1 else pictures(epoch)
    assert len(trained_on) == 45
    assert not pictures(part.images) & trained_on
    assert pictures(part.images) | trained_on == pictures(images.images)
    by_picture = {image.tobytes(): label for image, label in zip(images.images, images.labels, strict=True)}
    assert [by_picture[image.tobytes()] for image in part.images] == part.labels.tolist()


def test_another_seed_holds_out_others(trained, root):
    one, other = (held_out(facts, training_images(facts, root)) for facts, _ in (trained(seed=3), trained(seed=4)))
    assert pictures(one.images) != pictures(other.images)


def test_other_data_are_refused(trained, root):
    facts, _ = trained()
    file = root / "mnist" / "train-labels-idx1-ubyte"
    content = bytearray(file.read_bytes())
    content[-80] = 9  # the first label was 0
    file.write_bytes(content)
    with pytest.raises(ValueError, match="trained on other images than those of"):
        training_images(facts, root)


def test_a_run_that_held_out_nothing_is_refused(trained, root):
    facts, _ = trained(validation=0)
    with pytest.raises(ValueError, match="held out no validation images"):
        held_out(facts, training_images(facts, root))


@pytest.fixture
def runs(information):
    def make(*options):
        return list(group([RunFacts(f"run {k}", information(**each)) for k, each in enumerate(options)]).values())

    return make


def pair(**options):
    return {"seed": 0, **options}, {"seed": 5, **options}


def test_lambda_and_seed_may_differ(runs):
    check_strength_alone_differs(runs(*pair(), *pair(strength=1.0), *pair(strength=3.0), {"seed": 10}))


def test_deep_ensembles_may_differ_in_what_they_never_draw(runs):
    ours = {"recipe": {"weighting_batch_size": 128, "weighting_statistics": "running", "weighting_samples": 9}}
    check_strength_alone_differs(runs(*pair(), *pair(strength=1.0, **ours), *pair(strength=3.0, **ours)))
    with pytest.raises(ValueError, match=r"recipe\.weighting_batch_size is 128 in run 2 and"):
        check_strength_alone_differs(runs(*pair(), *pair(strength=1.0, **ours), *pair(strength=3.0)))


SNAPSHOT = {"class": "Snapshot", "label": "Snapshot ensemble"}
CLIPPED = {"class": "Gaussian", "scale": 5.0, "overflow": "clip"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*pair(), *pair(strength=1.0, recipe={"epochs": 2})], "recipe.epochs is 20 in run 0 and 2 in run 2"),
        ([*pair(), *pair(strength=1.0), *pair(strength=3.0, weighting=CLIPPED)], "weighting.overflow is wrap in run 2"),
        ([*pair(), *pair(strength=1.0), *pair(strength=3.0, distance="logits")], "distance is probabilities in run 2"),
        ([*pair(), *pair(strength=1.0, size=4)], "size is 4|size is 5"),
        ([*pair(), *pair(strength=1.0, depth=20)], "factory.args is"),
        ([*pair(), *pair(strength=1.0, data="ab" * 32)], "data is 0000"),
        ([*pair(), *pair(recipe={"epochs": 2}), *pair(strength=1.0)], "recipe.epochs"),
        ([*pair(strength=1.0)], "none of Deep Ensembles"),
        ([*pair(method=SNAPSHOT), *pair(strength=1.0)], "none of Deep Ensembles"),
        ([*pair(), *pair(strength=1.0), *pair(method=SNAPSHOT)], "run 4 is of Snapshot.*, which has no lambda_M"),
        ([*pair()], "none of any lambda_M"),
        ([*pair(), {"strength": 1.0}], "run 2 is the only run of its kind; .* at least 5 apart"),
    ],
)
def test_other_differences_and_single_seeds_are_refused(runs, options, message):
    with pytest.raises(ValueError, match=message):
        check_strength_alone_differs(runs(*options))
