"""Samples of a Laplace approximation (laplace-torch) and anyone's detector beside ours, in one table."""

import torch
from laplace import Laplace
from sklearn.datasets import make_moons
from sklearn.neighbors import NearestNeighbors
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge

(x, y), (x_test, y_test) = (map(torch.as_tensor, make_moons(300, noise=0.3, random_state=seed)) for seed in (0, 1))
x, x_test, angles = x.float(), x_test.float(), torch.linspace(0, 6.28, 100)
ring = 6 * torch.stack([angles.cos(), angles.sin()], dim=1) + x.mean(dim=0)


def fit(method: str) -> ge.Ensemble:
    recipe = ge.Recipe(epochs=30, batch_size=32)
    return ge.fit(lambda: ge.models.MLP(2), (x, y), size=5, method=method, strength=10.0, recipe=recipe)


ours = {"greedy": fit("greedy"), "deep": fit("deep")}
# Samples of the predictive distribution around one member stand for members.
laplace = Laplace(fit("deep")[0], "classification", subset_of_weights="all", hessian_structure="kron")
laplace.fit(DataLoader(TensorDataset(x, y), batch_size=50))
drawn = [laplace.predictive_samples(part, pred_type="glm", n_samples=100).detach() for part in (x_test, ring)]
near, far = (NearestNeighbors(n_neighbors=10).fit(x).kneighbors(part)[0][:, -1] for part in (x_test, ring))
theirs = {"Laplace": ge.benchmark.judge_probabilities("Laplace", drawn[0], y_test, {"ring": drawn[1]})}
theirs["kNN"] = ge.benchmark.judge_scores("10th neighbour", near, {"ring": far})
print(ge.compare({**ours, **theirs}, (x_test, y_test), {"ring": ring}).to_markdown())
