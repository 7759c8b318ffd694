"""Your own training loop: a coupler holds samples of p*, what finished members say of them, and the term."""

import torch
from sklearn.datasets import make_moons

import greedy_ensembles as ge

x, y = (torch.as_tensor(part) for part in make_moons(400, noise=0.3, random_state=0))
x, far = x.float(), 10 * torch.nn.functional.normalize(torch.randn(500, 2, generator=torch.manual_seed(1)))
for method in ("deep", "greedy"):
    p_star = ge.weighting.Gaussian.from_data(x)  # where members are asked to differ
    coupler = ge.Coupler(p_star, size=4, strength=3.0, method=method, samples=len(x), batch_size=64)
    members = []
    for seed in range(4):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.BatchNorm1d(32), ge.models.MLP(32, hidden=(32,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for chosen in (part for _ in range(30) for part in torch.randperm(len(x)).split(64)):
            with coupler.step(model):  # notes BatchNorm's statistics, by which samples of p* are normalised
                logits = model(x[chosen])
            optimizer.zero_grad()
            (torch.nn.functional.cross_entropy(logits, y[chosen]) + coupler.term(model)).backward()
            optimizer.step()
        coupler.add(model)  # what a finished member says does not change any more
        members.append(model)
    ensemble = ge.Ensemble.from_members(members)
    accuracy = (ensemble.predict_proba(x).mean(dim=0).argmax(dim=1) == y).float().mean()
    epistemic = ensemble.uncertainty(far).epistemic.mean()
    print(f"{method}: accuracy {accuracy:.3f}, mutual information far from the data {epistemic:.3f} nats")
