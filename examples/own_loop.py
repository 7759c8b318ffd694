"""Your own training loop: a coupler holds samples of p*, what finished members say of them, and the term."""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge

SIZE, EPOCHS, BATCH = 4, 30, 64
x, y = (torch.as_tensor(part) for part in make_moons(400, noise=0.3, random_state=0))
x = x.float()


def make_model() -> nn.Module:
    first = [nn.Linear(2, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def train(method: str) -> ge.Ensemble:
    weighting = ge.weighting.Gaussian.from_data(x)  # p*, where members are asked to differ
    coupler = ge.Coupler(weighting, SIZE, strength=3.0, method=method, samples=len(x), batch_size=BATCH)
    members = []
    for k in range(SIZE):
        torch.manual_seed(k)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(x)).split(BATCH):
                with coupler.step(model):  # notes BatchNorm's statistics, by which samples of p* are normalised
                    logits = model(x[chosen])
                optimizer.zero_grad()
                (cross_entropy(logits, y[chosen]) + coupler.term(model)).backward()
                optimizer.step()
        coupler.add(model)  # what a finished member says does not change any more
        members.append(model)
    return ge.Ensemble.from_members(members)


far = 10 * torch.nn.functional.normalize(torch.randn(500, 2, generator=torch.Generator().manual_seed(1)))
for name, method in (("Deep Ensembles", "deep"), ("greedy", "greedy")):
    ensemble = train(method)
    accuracy = (ensemble.predict_proba(x).mean(dim=0).argmax(dim=1) == y).float().mean()
    epistemic = ensemble.uncertainty(far).epistemic.mean()
    print(f"{name}: accuracy {accuracy:.3f}, mutual information far from the data {epistemic:.3f} nats")
