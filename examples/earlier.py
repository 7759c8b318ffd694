"""Members that you already have, whatever trained them: collect them, and train further ones against them."""

import tempfile

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge

x, y = (torch.as_tensor(part) for part in make_moons(300, noise=0.3, random_state=0))
x = x.float()


def trained_elsewhere(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


mine = ge.Ensemble.from_members([trained_elsewhere(0), trained_elsewhere(1)])
# Two more, of another architecture: they are pushed away from yours, which stay as they are.
four = ge.fit(
    lambda: ge.models.MLP(2, hidden=(32, 32)),
    (x, y),
    size=4,
    strength=10.0,
    earlier=mine,
    recipe=ge.Recipe(epochs=30),
)
far = torch.tensor([[8.0, 8.0], [-8.0, 8.0], [8.0, -8.0], [-8.0, -8.0]])
for name, ensemble in (("yours", mine), ("with two more", four)):
    print(f"{name}: {ensemble}, mutual information far from the data {ensemble.uncertainty(far).epistemic.mean():.3f}")

with tempfile.TemporaryDirectory() as folder:  # saved and exported like any other
    four[:2].save(f"{folder}/yours", notes={"Data": "two moons"})
    four.export_torch(f"{folder}/all.pt2", x)
