"""Data that is read while it is trained on: DataLoaders, streams, ragged batches, Datasets with workers."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.training.loaders import Iteration, LoaderExamples
from greedy_ensembles.training.validate import as_examples

Y = torch.arange(50) % 2
X = torch.randn(50, 2, generator=torch.Generator().manual_seed(5)) + 2.0 * Y[:, None]
HELD_OUT = (X[::3] + 0.1, Y[::3])


class Noisy(Dataset):
    """Items with noise from every kind of generator that transforms draw from."""

    def __init__(self, own=True):
        self.numpy = np.random.default_rng(1) if own else None
        self.torch = torch.Generator().manual_seed(1) if own else None

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        noise = torch.randn(2) + random.random() + np.random.random()  # noqa: NPY002
        if self.numpy is not None:
            noise = noise + self.numpy.random() + torch.rand((), generator=self.torch)
        return X[i] + 0.1 * noise.float(), int(Y[i])


class Stream(IterableDataset):
    """Examples without end, from the global generators."""

    def __iter__(self):
        while True:
            i = int(torch.randint(len(X), ()))
            yield X[i] + 0.1 * torch.randn(2), int(Y[i])


class Tape(IterableDataset):
    """Examples that go on where they stopped, as from a socket."""

    def __init__(self):
        self.tape = iter(range(10**9))

    def __iter__(self):
        for i in self.tape:
            yield X[i % len(X)], int(Y[i % len(X)])


def small():
    return ge.models.MLP(2, hidden=(4,))


def fit(data, make_model=small, recipe=None, **changes):
    recipe = ge.Recipe(**{"epochs": 3, "batch_size": 8} | (recipe or {}))
    options = {"size": 2, "strength": 1.0, "validation": HELD_OUT, "progress": False, "device": "cpu", "recipe": recipe}
    return ge.fit(make_model, data, **options | changes)


def weights(ensemble):
    return torch.stack([nn.utils.parameters_to_vector(member.parameters()).detach() for member in ensemble])


def test_an_epoch_is_one_iteration_over_the_loader():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    recipe = {"schedule": "constant", "epochs": 2}
    ensemble = fit(loader, size=1, method="deep", validation=0, recipe=recipe, seed=4)
    torch.manual_seed(4)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(weights(ensemble)[0], nn.utils.parameters_to_vector(model.parameters()).detach())


LOADERS = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=8, shuffle=True),
    "a generator of its own": lambda: DataLoader(Noisy(), batch_size=8, shuffle=True, generator=torch.Generator()),
    "drawn on the way": lambda: DataLoader(Noisy(), batch_size=8, sampler=RandomSampler(Noisy(), replacement=True)),
    "a stream": lambda: DataLoader(Stream(), batch_size=64),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_members_that_train_together_have_iterators_of_their_own(kind):
    """Deep Ensembles' members do not touch: together they become what they become one after another."""
    options = {"method": "deep", "recipe": {"steps_per_epoch": 5}}
    together = weights(fit(LOADERS[kind](), schedule="concurrent", **options))
    assert torch.equal(together, weights(fit(LOADERS[kind](), **options)))
    assert not torch.equal(together[0], together[1])
    # The first member meets no one, so that taking turns with others must not change what it is given. Its examples
    # share a matrix product with samples of p*, which some processors round otherwise than one of examples alone.
    coupled = weights(fit(LOADERS[kind](), schedule="concurrent", recipe={"steps_per_epoch": 5}))
    torch.testing.assert_close(coupled[0], together[0])


def test_what_an_iteration_gives_depends_on_seed_and_epoch_alone():
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, generator=torch.Generator())

    def first(*keys):
        return next(Iteration(loader, *keys))[0]

    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, other = Iteration(loader, 3, 1), Iteration(loader, 4, 1)
    for _ in range(3):  # in turns
        here, _ = next(one)[0], next(other)
    assert torch.equal(torch.get_rng_state(), before)
    alone = Iteration(loader, 3, 1)
    assert torch.equal([next(alone)[0] for _ in range(3)][-1], here)
    assert not torch.equal(first(3, 1), first(3, 2))
    assert not torch.equal(first(3, 1), first(4, 1))


RESUMED = {
    "loader": (lambda: DataLoader(Noisy(), batch_size=8, shuffle=True), {}),
    "loader, workers": (lambda: DataLoader(Noisy(own=False), batch_size=8, shuffle=True, num_workers=1), {}),
    "Dataset, workers": (Noisy, {"num_workers": 1}),
    "stream, workers": (lambda: DataLoader(Stream(), batch_size=64, num_workers=2), {"steps_per_epoch": 4}),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(kind, tmp_path):
    make, recipe = RESUMED[kind]
    recipe = {"epochs": 2, **recipe}

    def stop(event):
        if (event.member, event.epoch) == (2, 1):
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fit(make(), recipe=recipe, run_dir=tmp_path / "run", callbacks=[stop])
    resumed = fit(make(), recipe=recipe, run_dir=tmp_path / "run")
    assert torch.equal(weights(resumed), weights(fit(make(), recipe=recipe)))


def test_workers_read_what_the_process_itself_would(tmp_path):
    class Plain(Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, i):
            return X[i], int(Y[i])

    here = fit(Plain(), validation=0.2, recipe={"epochs": 1}, run_dir=tmp_path / "here")
    workers = fit(Plain(), validation=0.2, recipe={"epochs": 1, "num_workers": 2}, run_dir=tmp_path / "workers")
    assert torch.equal(weights(here), weights(workers))
    here, workers = (ge.load_run(tmp_path / name).configuration["data"] for name in ("here", "workers"))
    assert here == workers


def test_validation_may_be_a_loader():
    loader = DataLoader(TensorDataset(*HELD_OUT), batch_size=4, shuffle=True)
    recipe = {"select_by": "nll", "epochs": 6}
    own = fit((X, Y), recipe=recipe, validation=loader)
    assert torch.equal(weights(own), weights(fit((X, Y), recipe=recipe, validation=HELD_OUT)))
    assert (
        own.notes["Validation accuracy"] == fit((X, Y), recipe=recipe, validation=HELD_OUT).notes["Validation accuracy"]
    )


TEXTS = [torch.randint(1, 9, (2 + i % 5,), generator=torch.Generator().manual_seed(i)) for i in range(40)]


class Texts(Dataset):
    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, i):
        return {"input_ids": TEXTS[i], "label": i % 2}


def padded(items, least=0):
    ids = pad_sequence([item["input_ids"] for item in items], batch_first=True)
    ids = nn.functional.pad(ids, (0, max(0, least - ids.shape[1])))
    return {"input_ids": ids, "mask": ids > 0, "labels": torch.tensor([item["label"] for item in items])}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, input_ids, mask):
        return self.head((self.embed(input_ids) * mask[..., None]).sum(dim=1))


def test_ragged_batches_train_as_padded_ones_do_and_any_length_is_predicted(tmp_path):
    whole = padded([Texts()[i] for i in range(40)])
    x = {name: whole[name] for name in ("input_ids", "mask")}
    options = {"make_model": Bag, "weighting": ge.weighting.Shuffled(x), "validation": (x, whole["labels"])}
    ragged = fit(DataLoader(Texts(), batch_size=3, collate_fn=padded, shuffle=True), **options)
    equal = fit(DataLoader(Texts(), batch_size=3, collate_fn=lambda i: padded(i, 6), shuffle=True), **options)
    torch.testing.assert_close(weights(ragged), weights(equal))
    assert ragged.inputs["mask"].shape == (None,)
    ragged.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", Bag)
    longer = {name: nn.functional.pad(value, (0, 5)) for name, value in x.items()}
    torch.testing.assert_close(loaded.predict_proba(longer), ragged.predict_proba(x))
    every = DataLoader(Texts(), batch_size=7, collate_fn=padded)
    torch.testing.assert_close(loaded.predict_proba(every), ragged.predict_proba(x))
    with pytest.raises(ValueError, match="example"):
        loaded.export_torch(tmp_path / "e.pt2")
    with pytest.raises(ValueError, match="collate_fn"):
        fit(Texts(), **options)


def test_a_set_too_large_to_be_read_is_known_by_its_length_and_a_sample(tmp_path):
    class Large(Dataset):
        def __init__(self, length, shift=0.0):
            self.length, self.shift, self.read = length, shift, 0

        def __len__(self):
            return self.length

        def __getitem__(self, i):
            self.read += 1
            return torch.tensor([i / self.length, self.shift]), i % 2

    def known(length, shift=0.0, **options):
        return LoaderExamples(DataLoader(Large(length, shift), batch_size=64, **options), "data")

    one = known(10**6)
    assert one.loader.dataset.read <= 4096 + 64
    assert one.default_samples(10**6) == len(one.labels) == 4096
    (low, high), spread = one.form.range, torch.cat(list(one.chunks()))[:, 0].std()
    assert low < 0.01  # a sample of all of it, though the loader goes through it in order
    assert high > 0.99
    assert 0.25 < spread < 0.33
    assert one.digest() == known(10**6).digest()
    assert len({one.digest(), known(10**6 + 1).digest(), known(10**6, 1.0).digest()}) == 3
    fit(DataLoader(Large(60), batch_size=8), run_dir=tmp_path / "run")
    with pytest.raises(ge.FolderError, match="data"):
        fit(DataLoader(Large(60, 1.0), batch_size=8), run_dir=tmp_path / "run")


def test_p_star_of_an_array_on_disk_is_bounded(tmp_path):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (5, 1 << 24))
    y = np.zeros(5, np.int64)
    assert as_examples((x, y)).default_samples(5) == 4
    assert as_examples(((x, x), y)).default_samples(5) == 2
    assert as_examples((np.zeros((5, 9)), y)).default_samples(5) == 5


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (lambda: DataLoader(TensorDataset(X, Y)), {"validation": 0.1}, "validation"),
        (Stream, {}, "steps_per_epoch"),
        (lambda: DataLoader(Stream()), {}, "steps_per_epoch"),
        (lambda: (X, Y), {"validation": DataLoader(Stream())}, "validation is a stream"),
        (lambda: DataLoader(TensorDataset(X, Y), batch_size=8), {"recipe": {"steps_per_epoch": 8}}, "7 batches"),
        (lambda: (X, Y), {"recipe": {"steps_per_epoch": 2}}, "steps_per_epoch"),
        (lambda: (X, Y), {"recipe": {"num_workers": 2}}, "num_workers"),
        (lambda: DataLoader(TensorDataset(X, Y)), {"recipe": {"num_workers": 2}}, "num_workers"),
        (lambda: DataLoader(TensorDataset(X, 2 * Y), batch_size=8), {}, "labels go up to 2"),
        (lambda: DataLoader(TensorDataset(X[:, 0], Y), batch_size=8), {}, r"must have shape \(8, ...\)"),
        (lambda: DataLoader(TensorDataset(X[:0], Y[:0])), {"validation": 0}, "no batch"),
        (lambda: DataLoader(TensorDataset(X, Y)), {"validation": (X[:, :1], Y)}, "validation holds"),
        (lambda: Subset(Noisy(), []), {"recipe": {"num_workers": 1}, "validation": 0}, "data is an empty Dataset"),
    ],
)
def test_loaders_that_will_not_do_are_refused_before_training(data, changes, message):
    def never(event):
        raise AssertionError("it trained")

    with pytest.raises(ValueError, match=message):
        fit(data(), **{"callbacks": [never], **changes})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: DataLoader(Noisy(), batch_size=8, num_workers=1, persistent_workers=True), "persistent"),
        (lambda: DataLoader(Tape(), batch_size=8), "different batches"),
    ],
)
def test_what_cannot_be_put_back_has_no_run_dir(data, message, tmp_path):
    options = {"recipe": {"steps_per_epoch": 3, "epochs": 1}}
    with pytest.raises(ValueError, match=f"run_dir.*{message}"):
        fit(data(), run_dir=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
    assert len(fit(data(), **options)) == 2


def test_persistent_workers_are_not_shared_by_members_that_train_together():
    loader = DataLoader(Noisy(), batch_size=8, num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="persistent_workers"):
        fit(loader, schedule="concurrent")


def test_a_stream_that_ends_too_soon_says_so():
    class Short(IterableDataset):
        def __iter__(self):
            return iter(zip(X[:20], Y[:20].tolist(), strict=True))

    with pytest.raises(ValueError, match="steps_per_epoch"):
        fit(Short(), recipe={"steps_per_epoch": 5})


def test_a_label_that_the_sample_does_not_show_is_refused_when_it_comes():
    x, labels = torch.arange(9000.0)[:, None].expand(-1, 2) / 9000, torch.arange(9000) % 2
    loader = DataLoader(TensorDataset(x, labels), batch_size=4500)
    shown = torch.cat(list(LoaderExamples(loader, "data").chunks()))[:, 0]
    labels[int((~torch.isin(x[:, 0], shown)).nonzero()[0])] = 8
    with pytest.raises(ValueError, match="labels go up to 8"):
        fit(loader, validation=0)


def test_a_last_batch_of_one_is_left_out():
    sizes = []

    def augment(batch):
        sizes.append(len(batch))
        return batch

    loader = DataLoader(TensorDataset(X[:33], Y[:33]), batch_size=16)
    fit(loader, size=1, method="deep", recipe={"epochs": 1, "augment": augment})
    assert sizes[1:] == [16, 16]  # after one trial


def test_a_lone_last_example_of_a_stream_of_known_length_is_left_out():
    class Known(IterableDataset):
        def __len__(self):
            return 33

        def __iter__(self):
            return iter(zip(X[:33], Y[:33].tolist(), strict=True))

    def normed():
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    streamed, whole = (
        ge.fit(
            normed,
            DataLoader(items, batch_size=16),
            size=2,
            validation=0,
            weighting=ge.weighting.Uniform(-3, 3, (2,)),
            recipe=ge.Recipe(epochs=2, weighting_samples=20),
            progress=False,
            device="cpu",
        )
        for items in (Known(), TensorDataset(X[:32], Y[:32]))
    )
    assert torch.equal(streamed.predict_proba(X), whole.predict_proba(X))


class Drawn(Dataset):
    """A new example at every reading, with the label that belongs to it."""

    def __len__(self):
        return 50

    def __getitem__(self, i):
        x = torch.randn(2)
        return x, int(x[0] > 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_item_whose_label_changes_from_reading_to_reading_is_refused(workers):
    with pytest.raises(ValueError, match="has another label than when it was first read"):
        fit(Drawn(), validation=0, recipe={"num_workers": workers})


def test_examples_that_are_drawn_anew_train_from_a_loader():
    ensemble = fit(DataLoader(Drawn(), batch_size=10), validation=0, recipe={"epochs": 20})
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(1))
    for probs in ensemble.predict_proba(x):
        assert ge.metrics.accuracy(probs, (x[:, 0] > 0).long()) > 0.9
