import functools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.training.examples import ArrayExamples
from greedy_ensembles.training.validate import as_examples


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_all_kinds_of_data_look_the_same():
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 2])
    pair = as_examples((x, y))
    for data in (
        (x.numpy(), y.numpy()),
        [x.numpy().tolist(), y.tolist()],
        TensorDataset(x, y),
        Items(list(zip(x, y.tolist(), strict=True))),
        Items(list(zip(x.numpy(), y.numpy(), strict=True))),
    ):
        examples = as_examples(data)
        assert len(examples.labels) == 5
        assert examples.form.shape == (3,)
        assert torch.equal(examples.labels, y)
        torch.testing.assert_close(examples.inputs(torch.tensor([4, 1])).float(), pair.inputs(torch.tensor([4, 1])))
    assert as_examples((x.numpy(), y.numpy())).digest() == pair.digest()


def test_a_tensor_dataset_is_not_read_item_by_item():
    assert isinstance(as_examples(TensorDataset(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))), ArrayExamples)


def test_a_tensor_dataset_that_transforms_is_read_item_by_item():
    class Doubling(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return 2 * x, y

    examples = as_examples(Doubling(torch.ones(3, 2), torch.tensor([0, 1, 0])))
    assert examples.inputs(torch.tensor([0, 2])).eq(2).all()


def test_the_hash_sees_inputs_labels_and_order():
    x, y = torch.randn(6, 2), torch.arange(6)
    base = as_examples((x, y)).digest()
    assert base == as_examples((x.clone(), y.clone())).digest()
    assert base != as_examples((x + 1, y)).digest()
    assert base != as_examples((x, y.flip(0))).digest()
    items = list(zip(x, y.tolist(), strict=True))
    assert as_examples(Items(items)).digest() == as_examples(Items(items)).digest()
    assert as_examples(Items(items)).digest() != as_examples(Items(items[::-1])).digest()


def test_arrays_that_cannot_be_written_to_and_unusual_types_are_taken():
    x = np.zeros((4, 2), np.float32)
    x.setflags(write=False)
    examples = as_examples((x, np.array([0, 1, 0, 1], np.uint8)))
    assert examples.labels.dtype == torch.int64
    assert as_examples((np.zeros((2, 3), np.uint8), [0, 1])).form.dtype == torch.uint8


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((torch.zeros(3, 2), torch.zeros(3)), TypeError, "labels must be whole numbers .* got float32"),
        ((torch.zeros(3, 2), np.array(["a", "b", "c"])), TypeError, "labels must be whole numbers"),
        ((torch.zeros(3, 2), torch.tensor([True, False, True])), TypeError, "labels must be whole numbers"),
        ((torch.zeros(3, 2), torch.tensor([0, -1, 1])), ValueError, "labels must not be negative, got -1"),
        ((torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.long)), ValueError, r"shape \(n,\), .* y\.reshape\(-1\)"),
        ((torch.zeros(3, 2), torch.eye(3)), ValueError, r"got \(3, 3\): if they are one-hot, give y\.argmax\(1\)"),
        ((torch.zeros(3, 2), np.eye(3, dtype=int)), ValueError, r"one-hot, give y\.argmax\(1\)"),
        ((torch.zeros(3, 2), torch.tensor([0.1, 2.0, 3.7])), TypeError, "regression is not done here"),
        ((torch.zeros(3, 2), torch.tensor([0.0, 2.0, 1.0])), TypeError, r"y\.long\(\)"),
        ((torch.zeros(3, 2), ["a", "b", "a"]), TypeError, r"np\.unique\(y, return_inverse=True\)\[1\]"),
        ((torch.zeros(3, 2), torch.zeros(4, dtype=torch.long)), ValueError, "x has 3 examples, y has 4 labels"),
        ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)), ValueError, "x and y are empty"),
        ((torch.zeros(3), torch.zeros(3, dtype=torch.long)), ValueError, r"x must have shape \(n, ...\)"),
        ((np.array([["a"]]), [0]), TypeError, "x must hold numbers"),
        (torch.zeros(3, 2), TypeError, "data must be a pair"),
        (Items([]), ValueError, "data is an empty Dataset"),
        (Items([torch.zeros(2)]), TypeError, r"items of data must be \(input, label\)"),
        (Items([(torch.zeros(2), 0, "name")]), TypeError, "item 0 is a tuple of 3; wrap data in a Dataset"),
        (
            Items([(torch.zeros(2), 0), (torch.zeros(3), 1)]),
            ValueError,
            r"item 1 of data is float32 of shape \(3,\), the first float32 of shape \(2,\)",
        ),
        (Items([(object(), 0)]), TypeError, "inputs of data must be tensors or arrays, that of item 0 is object"),
        (Items([(torch.zeros(2), 0.5)]), TypeError, "labels must be whole numbers"),
    ],
)
def test_data_that_will_not_do_is_explained(data, error, message):
    with pytest.raises(error, match=message):
        as_examples(data)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["pair", "dataset"])
def test_the_first_example_that_is_not_finite_is_named(bad, kind):
    x = torch.zeros(2000, 2)
    x[1500, 1] = x[1700, 0] = bad
    y = torch.zeros(2000, dtype=torch.long)
    with pytest.raises(ValueError, match="x holds NaN or infinity, first in example 1500"):
        as_examples((x, y) if kind == "pair" else Items(list(zip(x, y.tolist(), strict=True))))


@pytest.mark.parametrize("kind", ["pair", "dataset"])
def test_the_first_example_beyond_single_precision_is_named(kind):
    x, y = torch.zeros(2000, 2, dtype=torch.float64), torch.zeros(2000, dtype=torch.long)
    x[1500, 1] = -1e300
    with pytest.raises(ValueError, match=r"x .*range of float32.* example 1500, .*1e\+300; scale"):
        as_examples((x, y) if kind == "pair" else Items(list(zip(x, y.tolist(), strict=True))))


def test_the_range_of_floating_point_inputs_is_noted():
    x, y = torch.tensor([[0.5, -3.0], [2.0, 1.0]]), torch.tensor([0, 1])
    items = Items(list(zip(x, [0, 1], strict=True)))
    assert as_examples((x, y)).form.range == as_examples(items).form.range == (-3.0, 2.0)
    assert as_examples((x.abs().byte(), y)).form.range is None


def test_an_array_on_disk_is_trained_on_where_it_lies(make_model, quick, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 2)))
    x, y = np.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(60) % 2
    assert as_examples((x, y)).x.data_ptr() == x.__array_interface__["data"][0]
    from_disk = ge.fit(make_model, (x, y), size=1, method="deep", **quick)
    from_memory = ge.fit(make_model, (np.array(x), y), size=1, method="deep", **quick)
    assert torch.equal(from_disk.predict_proba(x), from_memory.predict_proba(x))


class Noisy(Items):
    """Adds noise from a generator of its own, which may be anywhere."""

    def __init__(self, items, draw, keep):
        super().__init__(items)
        self.draw, self.keep = draw, keep

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + float(self.draw()), y


def noisy(place):
    items = [(torch.zeros(2), 0), (torch.zeros(2), 1), (torch.ones(2), 1)]
    if place == "torch":
        own = torch.Generator()
        return Noisy(items, lambda: torch.rand((), generator=own), {"rng": own})
    if place == "numpy":
        return Noisy(items, np.random.default_rng().normal, None)
    if place == "closure":
        rng = np.random.RandomState()
        return Noisy(items, lambda: rng.rand(), None)
    if place == "subset":
        return torch.utils.data.Subset(noisy("torch"), [0, 1, 2])
    rng = random.Random()
    return Noisy(items, functools.partial(rng.gauss, 0, 1), None)


@pytest.mark.parametrize("place", ["torch", "numpy", "closure", "subset", "python"])
def test_a_dataset_with_a_generator_of_its_own_is_the_same_data_at_every_start(place):
    dataset = noisy(place)
    digest = as_examples(dataset).digest()
    assert as_examples(dataset).digest() == as_examples(noisy(place)).digest() == digest
    assert not torch.equal(dataset[0][0], dataset[0][0])  # it stays random


class Stop(Exception):
    pass


def test_training_on_a_dataset_with_a_generator_of_its_own_goes_on_bit_for_bit(make_model, tmp_path):
    items = [(x, int(x[0] > 0)) for x in torch.randn(60, 2, generator=torch.Generator().manual_seed(0))]
    options = {"recipe": ge.Recipe(epochs=3, batch_size=16), "progress": False, "device": "cpu"}

    def fit(size=2, stop=0, **others):
        def count(epoch):
            if epoch.done == stop:
                raise Stop

        dataset = Noisy(items, np.random.default_rng(1).normal, None)
        return ge.fit(make_model, dataset, size=size, callbacks=[count], **options, **others)

    def probabilities(ensemble):
        return ensemble.predict_proba(torch.stack([x for x, _ in items]))

    whole = probabilities(fit())
    with pytest.raises(Stop):
        fit(stop=2, run_dir=tmp_path / "stopped")
    assert torch.equal(probabilities(fit(run_dir=tmp_path / "stopped")), whole)
    fit(size=1, run_dir=tmp_path / "extended")
    assert torch.equal(probabilities(fit(run_dir=tmp_path / "extended")), whole)
    deep = [probabilities(fit(method="deep", schedule=schedule)) for schedule in ("sequential", "concurrent")]
    torch.testing.assert_close(*deep, rtol=1e-4, atol=1e-5)


def test_data_is_known_by_the_same_hash_whatever_the_seed(make_model, quick, tmp_path):
    tensors = TensorDataset(torch.randn(60, 2), torch.arange(60) % 2)
    digests = set()
    for seed in (0, 7):
        folder = tmp_path / f"{seed}"
        loader = DataLoader(tensors, batch_size=16, shuffle=True)
        ge.fit(make_model, loader, size=1, seed=seed, validation=0, run_dir=folder / "loader", **quick)
        ge.fit(make_model, noisy("numpy"), size=1, seed=seed, validation=0, run_dir=folder / "dataset", **quick)
        digests |= {ge.load_run(folder / name).configuration["data"] for name in ("loader", "dataset")}
    assert len(digests) == 2


def test_a_run_on_a_dataset_with_a_generator_of_its_own_can_be_extended(make_model, quick, tmp_path):
    dataset = noisy("torch")
    options = {"run_dir": tmp_path / "run", "validation": 0, **quick}
    ge.fit(make_model, dataset, size=2, strength=1.0, **options)
    assert len(ge.fit(make_model, dataset, size=3, strength=1.0, **options)) == 3
