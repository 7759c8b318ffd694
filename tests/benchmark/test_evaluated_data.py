"""What is judged on, beside image sets: arrays, tables, Datasets and loaders; and sets that will not do."""

from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score

import greedy_ensembles as ge
from greedy_ensembles.benchmark import evaluate


def linear(classes=3, seed=0):
    torch.manual_seed(seed)
    body = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh())
    return torch.nn.Sequential(OrderedDict(body=body, head=torch.nn.Linear(5, classes)))


def table(count=60, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 2)).astype(np.float32), rng.integers(0, 3, count)


def test_arrays_tables_and_datasets_are_evaluated_as_image_sets_are():
    ensemble = ge.Ensemble([linear(seed=0), linear(seed=1)])
    (x, y), far = table(), 9 * table(30, 1)[0]
    found = evaluate(ensemble, (x, y), {"far": far})
    probs, ood = ensemble.predict_proba(x).numpy(), ensemble.predict_proba(far).numpy()
    assert (found.in_domain.name, found.in_domain.images, found.ood[0].images) == ("in-domain", 60, 30)
    assert found.in_domain.accuracy == accuracy_score(y, probs.mean(0).argmax(1))
    entropies = [ge.metrics.mutual_information(part.astype(np.float64)) for part in (probs, ood)]
    assert found.ood[0].auc == pytest.approx(ge.metrics.auroc(*entropies), abs=2e-3)
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(far)), batch_size=7)
    again = evaluate(ensemble, pairs, {"far": loader})
    assert again.ood[0].by_score["energy"] == pytest.approx(found.ood[0].by_score["energy"])
    assert again.in_domain.nll == pytest.approx(found.in_domain.nll)
    frame = evaluate(ensemble, (pd.DataFrame(x), y), {"far": pd.DataFrame(far)})
    assert frame.ood == found.ood


def test_labels_of_a_loader_stay_with_their_inputs_though_it_shuffles():
    ensemble, (x, y) = ge.Ensemble([linear(seed=0), linear(seed=1)]), table()
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(pairs, batch_size=7, shuffle=True)
    found, expected = (
        evaluate(ensemble, given, {"far": 9 * x}, features="head", reference=given) for given in (loader, (x, y))
    )
    for figure in ("images", "accuracy", "nll", "member_accuracies"):
        assert getattr(found.in_domain, figure) == pytest.approx(getattr(expected.in_domain, figure), rel=1e-6)
    for score, figures in expected.ood[0].by_score.items():
        assert found.ood[0].by_score[score] == pytest.approx(figures, rel=1e-4), score


class Drawn(torch.utils.data.Dataset):
    """Another input of every item at each reading, of another class or of the same."""

    def __init__(self, classes):
        self.classes = classes

    def __len__(self):
        return 20

    def __getitem__(self, position):
        label = int(torch.randint(3, ())) if self.classes == "drawn" else position % 3
        return torch.randn(2) + label, label


def test_a_dataset_that_draws_other_labels_at_each_reading_is_refused():
    """Its inputs would be held against the labels of other ones."""
    ensemble = ge.Ensemble([linear(), linear(seed=1)])
    assert evaluate(ensemble, Drawn("kept"), {}).in_domain.images == 20
    with pytest.raises(ValueError, match=r"^in_domain: item \d+ .*another label"):
        evaluate(ensemble, Drawn("drawn"), {})


def ragged(batch):
    """Pad inputs to a length that differs from batch to batch."""
    return torch.ones(len(batch), 1 + int(batch[0][1])), torch.tensor([label for _, label in batch])


def test_a_loader_whose_batches_do_not_fit_together_is_refused():
    x, y = table()
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(pairs, batch_size=1, collate_fn=ragged)
    with pytest.raises(ValueError, match=r"in_domain: .*several lengths.* pad"):
        evaluate(ge.Ensemble([linear()]), loader, {})


@pytest.mark.parametrize("given", [3, (np.ones((4, 2)), [0.5] * 4), (np.ones((4, 2)), [0, 1])])
def test_a_refusal_names_in_domain_once(given):
    with pytest.raises((TypeError, ValueError), match=r"^in_domain: (?!.*in_domain)"):
        evaluate(ge.Ensemble([linear()]), given, {})


class Counted(torch.nn.Module):
    """A member that knows how many inputs it saw."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(2, 3), 0

    def forward(self, x):
        self.seen += len(x)
        return self.layer(x)


def with_nan(count=30, place=21):
    x = table(count)[0]
    x[place] = np.nan
    return x


@pytest.mark.parametrize("kind", ["array", "tuple of them", "Dataset", "DataLoader"])
def test_a_set_with_nan_is_named_and_arrays_before_anything_is_predicted(kind):
    member, (x, y) = Counted(), table()
    bad = torch.from_numpy(with_nan())
    items = torch.utils.data.TensorDataset(bad)
    made = {"array": bad.numpy(), "tuple of them": (bad,), "Dataset": items}
    bad = made.get(kind, torch.utils.data.DataLoader(items, batch_size=7))
    with pytest.raises(ValueError, match=r"ood\['bad'\]: .*NaN or infinity, first in input 21"):
        evaluate(ge.Ensemble([member, member]), (x, y), {"good": 9 * x, "bad": bad})
    assert bool(member.seen) == kind.startswith("Data")
    with pytest.raises(ValueError, match=r"in_domain: x holds NaN .* 3;"):
        evaluate(ge.Ensemble([member]), (with_nan(60, 3), y), {})
    with pytest.raises(ValueError, match=r"reference: x holds NaN .* 3;"):
        evaluate(ge.Ensemble([member]), (x, y), {}, features="layer", reference=(with_nan(60, 3), y))


def test_no_ood_set_has_the_name_of_the_in_domain_data(counting, image_set):
    with pytest.raises(ValueError, match=r"ood\['in-domain'\] has the name"):
        evaluate(ge.Ensemble([linear()]), table(), {"in-domain": table()[0]})
    with pytest.raises(ValueError, match=r"ood\['inside'\] has the name"):
        evaluate(ge.Ensemble([counting(0)]), image_set(labelled=True), {"inside": image_set(seed=1)})


class Drawing(torch.nn.Module):
    """A member that draws random numbers whenever it is asked, as a posterior sampled in its forward pass does."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * torch.randn(len(x), 3)


def test_members_that_draw_do_not_draw_the_same():
    ensemble = ge.Ensemble.from_members([Drawing(), Drawing()])
    x = torch.zeros(20, 2)
    one, other = (ge.benchmark.predict(ensemble, x).log_probs for _ in range(2))
    assert not np.allclose(one[0], one[1])
    assert not np.allclose(one, other)
