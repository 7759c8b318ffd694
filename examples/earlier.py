"""Members that you already have, whatever trained them: collect them, and train further ones against them."""

import torch
from sklearn.datasets import make_moons

import greedy_ensembles as ge

x, y = (torch.as_tensor(part) for part in make_moons(300, noise=0.3, random_state=0))
x = x.float()
models = [torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)) for _ in range(2)]
for model in models:  # yours, trained elsewhere
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
mine = ge.Ensemble.from_members(models)


def make_model() -> torch.nn.Module:  # of another architecture
    return ge.models.MLP(2, hidden=(32, 32))


# Two more: they are pushed away from yours, which stay as they are.
four = ge.fit(make_model, (x, y), size=4, strength=10.0, earlier=mine, recipe=ge.Recipe(epochs=30))
far = torch.tensor([[8.0, 8.0], [-8.0, 8.0], [8.0, -8.0], [-8.0, -8.0]])
for name, ensemble in (("yours", mine), ("with two more", four)):
    print(f"{name}: {ensemble}, mutual information far from the data {ensemble.uncertainty(far).epistemic.mean():.3f}")
four.export_torch("all.pt2", x)  # saved and exported like any other
