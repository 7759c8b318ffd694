"""Samples of a Laplace approximation (laplace-torch) and anyone's detector beside ours, in one table."""

import torch
from laplace import Laplace
from sklearn.datasets import make_moons
from sklearn.neighbors import NearestNeighbors
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge


def moons(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    points, labels = make_moons(300, noise=0.3, random_state=seed)
    return torch.as_tensor(points).float(), torch.as_tensor(labels)


def make_model() -> torch.nn.Module:
    return ge.models.MLP(2, hidden=(16, 16))


(x, y), (x_test, y_test) = moons(0), moons(1)
angles = torch.linspace(0, 6.28, 100)
ood = {"ring": 6 * torch.stack([angles.cos(), angles.sin()], dim=1) + x.mean(dim=0)}

recipe = ge.Recipe(epochs=30, batch_size=32)
greedy = ge.fit(make_model, (x, y), size=5, strength=10.0, recipe=recipe, progress=False)
deep = ge.fit(make_model, (x, y), size=5, method="deep", recipe=recipe, progress=False)

# Laplace around one member, in a copy of it: samples of the predictive distribution are its members.
network = make_model()
network.load_state_dict(deep[0].state_dict())
laplace = Laplace(network.eval(), "classification", subset_of_weights="all", hessian_structure="kron")
laplace.fit(DataLoader(TensorDataset(x, y), batch_size=50))


def samples(inputs: torch.Tensor) -> torch.Tensor:
    return laplace.predictive_samples(inputs, pred_type="glm", n_samples=100).detach()


known = NearestNeighbors(n_neighbors=10).fit(x)
table = ge.compare(
    {
        "greedy": greedy,
        "deep": deep,
        "Laplace": ge.benchmark.judge_probabilities(
            "Laplace", samples(x_test), y_test, {name: samples(inputs) for name, inputs in ood.items()}
        ),
        "kNN": ge.benchmark.judge_scores(
            "10th neighbour",
            known.kneighbors(x_test)[0][:, -1],
            {name: known.kneighbors(inputs)[0][:, -1] for name, inputs in ood.items()},
        ),
    },
    (x_test, y_test),
    ood,
)
print(table.to_markdown())
print(table.scores("Laplace").to_markdown())
