from functools import partial

import numpy as np
import pytest

import greedy_ensembles as ge
from greedy_ensembles.benchmark import pack_predictions
from greedy_ensembles.benchmark.presets import PRESETS, Bench, lay_out
from greedy_ensembles.benchmark.stored_runs import (
    evaluate_run,
    facts_of,
    from_folder,
    held_out,
    images_of,
    kept_beside_the_run,
    open_runs,
    pack_run,
    training_images,
)
from greedy_ensembles.storage import FolderError


@pytest.fixture
def root(tmp_path, write_mnist):
    write_mnist(tmp_path / "data" / "mnist", "t10k", 30, 1)
    write_mnist(tmp_path / "data" / "mnist", "train", 80, 0)
    return tmp_path / "data"


def test_runs_on_resized_images_are_evaluated_on_such(root, tmp_path):
    """The set keeps its name when it is resized, and a network of convolutions takes any size without complaint."""
    small = ge.data.load("mnist", "train", root, size=8, channels=3)
    recipe = ge.Recipe(epochs=1)
    make_model = partial(ge.models.PreResNet, 8, classes=10, channels=3)
    options = {"size": 1, "recipe": recipe, "validation": 0, "progress": False}
    ge.fit(make_model, small, strength=1.0, run_dir=tmp_path / "greedy", **options)
    (run,) = open_runs([tmp_path / "greedy"], kept_beside_the_run(), ood=["uniform"], root=root)
    assert run.bench.in_domain.images.shape == (30, 3, 8, 8)
    assert run.bench.ood["uniform"].images.shape[1:] == (3, 8, 8)
    own = ge.data.load("mnist", "train", root)
    ge.fit(partial(ge.models.PreResNet, 8, channels=1), own, strength=1.0, run_dir=tmp_path / "own", **options)
    with pytest.raises(ValueError, match=r"one shape.*greedy on 3x8x8, .*own on 1x28x28"):
        open_runs([tmp_path / "greedy", tmp_path / "own"], kept_beside_the_run(), ood=["uniform"], root=root)


@pytest.fixture
def packed(random_predictions, information, tmp_path):
    """Files of packed predictions on three OOD sets, by what is known of their runs."""

    def make(name, *, names=("uniform", "dtd", "omniglot"), missing=("gaussian",), count=50, **options):
        outside = [random_predictions(each, seed=number, count=count) for number, each in enumerate(names)]
        inside = random_predictions(options.get("dataset", "mnist"), labelled=True, seed=9)
        known = information(**options)
        return pack_predictions(tmp_path / name, inside, outside, missing=missing, information=known)[0]

    return make


def refuse(*arguments):
    raise AssertionError("nothing is to be predicted")


def test_a_bench_has_the_test_split_and_the_preset(root):
    bench = lay_out("mnist", root=root)
    assert len(bench.in_domain) == 30
    assert set(bench.ood) | set(bench.missing) == set(PRESETS["mnist"])
    assert list(lay_out("mnist", ["blobs"], root).ood) == ["blobs"]
    with pytest.raises(ValueError, match="no preset of OOD sets for fashion_mnist, only for"):
        lay_out("fashion_mnist", root=root)


def test_packed_predictions_need_neither_data_nor_weights(packed):
    (run,) = open_runs([packed("a.npz")], refuse, root="/nowhere")
    found = evaluate_run(run, "mutual_information")
    assert [result.name for result in found.ood] == ["uniform", "dtd", "omniglot"]
    assert (found.members, found.missing) == (3, ("gaussian",))
    assert images_of([run]) == {}


def test_some_of_the_packed_sets(packed):
    (run,) = open_runs([packed("a.npz")], refuse, ood=["dtd"])
    found = evaluate_run(run, "mutual_information")
    assert [result.name for result in found.ood] == ["dtd"]
    assert found.missing == ()  # nothing that was asked for
    with pytest.raises(ValueError, match=r"ood .*b\.npz.* 'uniform', 'dtd', 'omniglot'; got 'svhn'"):
        open_runs([packed("b.npz")], refuse, ood=["svhn"])


def test_other_sets_are_refused_before_anything_is_predicted(packed):
    one = packed("a.npz")
    for options, told in (
        ({"names": ("uniform", "dtd")}, r"dtd \(50\), no gaussian; name those"),
        ({"missing": ()}, r"omniglot \(50\); name those"),
        ({"count": 49}, r"uniform \(49\)"),
    ):
        with pytest.raises(ValueError, match=rf"a\.npz has mnist \(50\), .*, and .*b\.npz mnist .*{told}"):
            open_runs([one, packed("b.npz", seed=5, **options)], refuse)
    common = open_runs([one, packed("b.npz", seed=5, names=("omniglot", "dtd"), missing=())], refuse, ood=["dtd"])
    assert [[name for name, _ in run.sets] for run in common] == [["mnist", "dtd"]] * 2


def test_packed_again_it_is_the_same(packed, tmp_path):
    (run,) = open_runs([packed("a.npz")], refuse)
    (file,) = pack_run(run, tmp_path / "again.npz")
    (again,) = open_runs([file], refuse)
    assert again.bench is None
    assert again.facts.information == run.facts.information
    assert evaluate_run(again, "max_probability").ood[0].auc == pytest.approx(
        evaluate_run(run, "max_probability").ood[0].auc, abs=1e-3
    )


def test_runs_that_cannot_be_compared_are_refused_before_anything_is_predicted(packed, tmp_path):
    with pytest.raises(ValueError, match=r"in-domain set.*a\.npz on mnist, .*b\.npz on svhn"):
        open_runs([packed("a.npz"), packed("b.npz", dataset="svhn")], refuse)
    with pytest.raises(ValueError, match="at least 5 apart"):
        open_runs([packed("a.npz"), packed("b.npz", seed=3)], refuse)
    with pytest.raises(ValueError, match=r"a\.npz is named twice"):
        open_runs([packed("a.npz")] * 2, refuse)
    with pytest.raises(FolderError, match="holds no run"):
        open_runs([tmp_path], refuse)


def test_a_folder_keeps_predictions_and_an_extended_run_computes_new_members_alone(root, tmp_path, counting, image_set):
    data = ge.data.load("mnist", "train", root).resized(4)
    bench = Bench(data, {"noise": image_set("noise", count=20)})
    options = {"run_dir": tmp_path / "run", "validation": 0, "progress": False, "device": "cpu"}
    made = []

    def make_model():
        made.append(counting(0, classes=10))
        return made[-1]

    def evaluated(size):
        ge.fit(make_model, data, size=size, method="deep", recipe=ge.Recipe(epochs=1, batch_size=8), **options)
        made.clear()
        paths, predict = [tmp_path / "run"], kept_beside_the_run(batch_size=8)
        (opened,) = open_runs(paths, predict, ood=["uniform"], make_model=make_model, root=root)
        run = from_folder(opened.facts, bench, predict, make_model)  # smaller sets than any by name
        assert evaluate_run(run, "mutual_information").members == size
        assert list(images_of([run])) == ["mnist", "noise"]
        return [model.seen for model in made if model.seen]

    assert evaluated(2) == [100, 100]  # 80 in-domain images and 20 others
    assert evaluated(2) == []
    assert evaluated(3) == [100]
    assert len(list((tmp_path / "run" / "predictions").iterdir())) == 6


def test_facts_without_a_run_are_refused(random_predictions, tmp_path):
    (file,) = pack_predictions(tmp_path / "x.npz", random_predictions(labelled=True), [])
    with pytest.raises(ValueError, match="does not say which run"):
        open_runs([file], refuse)


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
