"""Your own training loop: it needs the diversity term, and BatchNorm frozen while samples of p* go through a model."""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge

SIZE, STRENGTH, EPOCHS, BATCH = 4, 3.0, 30, 64

x, y = (torch.as_tensor(part) for part in make_moons(400, noise=0.3, random_state=0))
x = x.float()


def make_model() -> nn.Module:
    # No bias before BatchNorm: the loss does not see it, so that the diversity term alone would move it, without end.
    first = [nn.Linear(2, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def train(strength: float) -> ge.Ensemble:
    # p*, where members are asked to differ: drawn once, the same samples for every member.
    samples = ge.weighting.Gaussian.from_data(x).sample(len(x), torch.Generator().manual_seed(0))
    bank = torch.empty(0, len(samples), 2)  # what the members so far say about the samples: (members, samples, classes)
    members = []
    for k in range(SIZE):
        torch.manual_seed(k)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(x[chosen]), y[chosen]).backward()
                at = torch.randint(len(samples), (BATCH,))
                with ge.frozen_batchnorm(model):  # p* must not leak into BatchNorm's statistics
                    outputs = model(samples[at]).softmax(dim=1)
                ge.diversity_term(outputs, bank[:, at], strength, SIZE).backward()  # 0 for the first member
                optimizer.step()
        model.eval()
        with torch.no_grad():  # what a finished member says does not change any more
            bank = torch.cat([bank, model(samples).softmax(dim=1)[None]])
        members.append(model)
    return ge.Ensemble.from_members(members)


far = 10 * torch.nn.functional.normalize(torch.randn(500, 2, generator=torch.Generator().manual_seed(1)))
for name, strength in (("Deep Ensembles", 0.0), ("greedy", STRENGTH)):
    ensemble = train(strength)
    accuracy = (ensemble.predict_proba(x).mean(dim=0).argmax(dim=1) == y).float().mean()
    epistemic = ensemble.uncertainty(far).epistemic.mean()
    print(f"{name}: accuracy {accuracy:.3f}, mutual information far from the data {epistemic:.3f} nats")
