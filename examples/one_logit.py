"""A binary classifier with one output: the logit z of class 1, as logits (0, z)."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import greedy_ensembles as ge

x, y = (torch.as_tensor(part) for part in load_breast_cancer(return_X_y=True))
held_out = torch.arange(len(x)) % 4 == 0


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 1))  # no sigmoid at its end


recipe = ge.Recipe(epochs=30, lr=0.03, normalize=(x.mean(dim=0), x.std(dim=0)))
ensemble = ge.fit(make_model, (x[~held_out], y[~held_out]), size=4, recipe=recipe, schedule="concurrent")
probs = ensemble.predict_proba(x[held_out])  # (members, n, 2)
accuracy = (probs.mean(dim=0)[:, 1] > 0.5).eq(y[held_out]).float().mean()
print(f"accuracy {accuracy:.3f}; probabilities of class 1: {probs[:, 0, 1].tolist()}")
