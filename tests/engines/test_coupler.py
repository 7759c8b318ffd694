"""`ge.Coupler` in a loop of one's own against `ge.fit`, which trains the same members on the same samples."""

import gc
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import greedy_ensembles as ge
from greedy_ensembles.generators import SHUFFLE, generator, seed_generators
from greedy_ensembles.sweeps.executor import Processes

SIZE, EPOCHS, BATCH = 3, 3, 16


class Twice(nn.Module):
    """BatchNorm that is called twice in a pass."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.norm(torch.tanh(self.norm(self.first(x)))))


def plain():
    return nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def gaussian(x):
    return ge.weighting.Gaussian.from_data(x)


def own_loop(make_model, x, y, coupler, size=SIZE, wrap=lambda model: model, part=slice(None), loss=cross_entropy):
    members = []
    for k in range(size):
        seed_generators(k)
        model = wrap(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(EPOCHS):
            for chosen in torch.randperm(len(x), generator=generator(SHUFFLE, k, epoch)).split(BATCH):
                rows = chosen[part]
                with coupler.step(model):
                    logits = model(x[rows])
                optimizer.zero_grad()
                (loss(logits, y[rows]) + coupler.term(model)).backward()
                optimizer.step()
        coupler.add(model)
        members.append(model.eval())
    return members


@pytest.mark.filterwarnings("ignore::greedy_ensembles.runs.notes.WeakMemberWarning")  # after so few steps
@pytest.mark.parametrize(
    ("kind", "method", "changes"),
    [
        (plain, "greedy", {}),
        (plain, "greedy", {"statistics": "running"}),
        (Twice, "pairwise", {}),
        (Twice, "pairwise", {"statistics": "running"}),
        (plain, "deep", {}),
        (plain, "greedy", {"distance": "logits"}),
        (plain, "greedy", {"targets": "labels"}),
        (plain, "pairwise", {"targets": "labels", "distance": "logits"}),
    ],
)
def test_a_loop_of_ones_own_ends_with_the_weights_of_fit(blobs, kind, method, changes):
    x, y = blobs[0].double(), blobs[1]
    loss, strength = cross_entropy, 20.0
    if "targets" in changes:
        y, loss = torch.stack([y, (x[:, 0] > 0).long()], dim=1), lambda logits, y: bce(logits, y.double())
    if "distance" in changes:
        strength = 0.5  # logits have no bound
    sizes, others = {"samples": len(x), "batch_size": BATCH}, dict(changes)
    steps = {"epochs": EPOCHS, "batch_size": BATCH, "schedule": "constant", "weight_decay": 0}
    recipe = ge.Recipe(**steps, weighting_statistics=others.pop("statistics", "batch"))
    options = {"weighting": None if method == "deep" else gaussian(x), "validation": 0, "progress": False, **others}
    fitted = ge.fit(
        lambda: kind().double(), (x, y), size=SIZE, method=method, strength=strength, recipe=recipe, device="cpu",
        **options,
    )  # fmt: skip
    coupler = ge.Coupler(gaussian(x), SIZE, strength, method, **sizes, **changes)
    members = own_loop(lambda: kind().double(), x, y, coupler, loss=loss)
    assert len(coupler) == SIZE
    for own, theirs in zip(members, fitted, strict=True):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(own.state_dict()[name], value, rtol=1e-9, atol=1e-12)


def ranks_part(rank, folder, x, y, tell):
    """Train on a half of every batch in one of two processes, and save what comes of it."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    coupler = ge.Coupler(gaussian(x), 2, 20.0, samples=40, batch_size=BATCH)
    members = own_loop(
        lambda: ge.models.MLP(2, hidden=(8,)).double(),
        x,
        y,
        coupler,
        size=2,
        wrap=DistributedDataParallel,
        part=slice(rank, None, 2),
    )
    # BatchNorm: a second pass through the wrapper, which sends buffers around, would fail in backward.
    own_loop(plain, x.float(), y, ge.Coupler(gaussian(x), 2), 2, DistributedDataParallel)
    torch.save([member.module.state_dict() for member in members], f"{folder}/rank{rank}.pt")
    # A group that ends with the last wrapper waits for its thread, which may need Python's lock to let go of tensors:
    # PyTorch's own deadlock. Ended by name, after the wrappers, it waits without that lock.
    del members
    gc.collect()
    dist.destroy_process_group()


def test_two_processes_train_the_members_that_one_does(blobs, tmp_path):
    x, y = blobs[0][:48].double(), blobs[1][:48]
    jobs = {str(rank): partial(ranks_part, rank, tmp_path, x, y) for rank in range(2)}
    Processes(places=(None, None)).run(jobs, print)
    coupler = ge.Coupler(gaussian(x), 2, 20.0, samples=40, batch_size=BATCH)
    alone = own_loop(lambda: ge.models.MLP(2, hidden=(8,)).double(), x, y, coupler, size=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    for member, one, other in zip(alone, first, second, strict=True):
        for name, value in member.state_dict().items():
            torch.testing.assert_close(one[name], value, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(other[name], one[name], rtol=0, atol=0)


def test_the_first_member_has_no_term_and_modes_stay(blobs):
    model, coupler = plain(), ge.Coupler(gaussian(blobs[0]), 2, samples=30)
    statistics = model[1].running_mean.clone()
    model[3].eval()
    with coupler.step(model):
        pass
    assert coupler.term(model) == 0
    coupler.add(model)
    assert model[1].training
    assert not model[3].training
    assert torch.equal(model[1].running_mean, statistics)


def test_samples_are_transformed_as_the_examples_are(blobs):
    x = blobs[0]
    models = [ge.models.MLP(2), ge.models.MLP(2)]
    terms = []
    for weighting, transform in ((gaussian(x), None), (gaussian(10 * x), lambda samples: samples / 10)):
        coupler = ge.Coupler(weighting, 2, samples=30, transform=transform)
        coupler.add(models[0])
        with coupler.step(models[1]):
            models[1](x)
        terms.append(coupler.term(models[1]))
    assert terms[0] < 0
    torch.testing.assert_close(terms[0], terms[1])


def test_dicts_and_outputs_with_logits():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, ids):
            return type("Output", (), {"logits": self.table(ids).mean(dim=1)})

    coupler = ge.Coupler(ge.weighting.Entries({"ids": ge.weighting.Tokens(5, 4)}), 2, samples=30)
    coupler.add(Tokens())
    model = Tokens()
    with coupler.step(model):
        model(torch.zeros(2, 4, dtype=torch.long))
    coupler.term(model).backward()
    assert model.table.weight.grad.abs().sum() > 0


def test_what_a_loop_may_not_do(blobs):
    x = blobs[0]
    model, coupler = plain(), ge.Coupler(gaussian(x), 2, samples=30)
    with pytest.raises(ValueError, match="model"):
        coupler.term(model)
    coupler.add(plain())
    with coupler.step(model):
        model(x)
    with pytest.raises(ValueError, match="model"):
        coupler.term(plain())
    coupler.term(model)
    with pytest.raises(ValueError, match="model"):  # one term a step
        coupler.term(model)
    with coupler.step(model):
        pass
    with pytest.raises(ValueError, match="inside"):
        coupler.term(model)
    with pytest.raises(ValueError, match="classes"):
        coupler.add(nn.Linear(2, 3))
    with pytest.raises(ValueError, match="softmax"):
        coupler.add(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)))
    with pytest.raises(ValueError, match="SyncBatchNorm"), coupler.step(nn.Sequential(nn.SyncBatchNorm(2))):
        pass
    coupler.add(model)
    with pytest.raises(ValueError, match="size"):
        coupler.add(plain())
    with pytest.raises(ValueError, match="labels"):
        ge.Coupler(gaussian(x), 2, samples=30, targets="labels").add(nn.Linear(2, 1))


def test_evaluation_has_no_term_and_takes_no_samples(blobs):
    """A term of the steps that follow is of the same samples, whether or not something was evaluated between them."""
    x, terms = blobs[0], []
    models = [ge.models.MLP(2), ge.models.MLP(2)]
    for evaluates in (False, True):
        coupler = ge.Coupler(gaussian(x), 2, samples=300, batch_size=4)
        coupler.add(models[0])
        for _ in range(2):
            with coupler.step(models[1]):
                models[1](x)
            terms.append(coupler.term(models[1]))
            if evaluates:
                with torch.no_grad(), coupler.step(models[1]):
                    models[1](x)
                with torch.no_grad():
                    assert coupler.term(models[1]) == 0
    assert terms[0] != terms[1]
    assert terms[:2] == terms[2:]


class Odd:
    def sample(self, n, generator):
        return torch.full((n, 2), torch.nan)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("size", {"size": 0}),
        ("strength", {"strength": -1}),
        ("method", {"method": "gredy"}),
        ("method", {"method": "snapshot"}),
        ("method", {"method": "hyper"}),
        ("method", {"method": "repulsive"}),
        ("samples", {"samples": 0}),
        ("batch_size", {"batch_size": 0}),
        ("statistics", {"statistics": "frozen"}),
        ("distance", {"distance": "cosine"}),
        ("targets", {"targets": "label"}),
        ("seed", {"seed": -1}),
        ("transform", {"transform": 3}),
        ("weighting", {"weighting": 3}),
        ("weighting", {"weighting": Odd()}),
    ],
)
def test_bad_arguments_are_named(blobs, name, changes):
    with pytest.raises((TypeError, ValueError), match=name):
        ge.Coupler(**{"weighting": gaussian(blobs[0]), "size": 2, **changes})
