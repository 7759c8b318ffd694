import numpy as np
import pytest

import greedy_ensembles as ge
from greedy_ensembles.benchmark import RunFacts
from greedy_ensembles.benchmark.held_out import check_strength_alone_differs, held_out, training_images
from greedy_ensembles.benchmark.runs import group
from greedy_ensembles.benchmark.sources import facts_of


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
        ([*pair()], "none of any lambda_M"),
        ([*pair(), {"strength": 1.0}], "run 2 is the only run of its kind; .* at least 5 apart"),
    ],
)
def test_other_differences_and_single_seeds_are_refused(runs, options, message):
    with pytest.raises(ValueError, match=message):
        check_strength_alone_differs(runs(*options))
