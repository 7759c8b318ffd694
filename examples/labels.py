"""Independent labels, of which any may apply to an input: flowers' colours, scenes' objects, genes' functions."""

import torch
from sklearn.datasets import make_multilabel_classification
from torch import nn

import greedy_ensembles as ge

x, y = make_multilabel_classification(800, n_features=20, n_classes=5, random_state=0)
x, y = torch.from_numpy(x).float(), torch.from_numpy(y)  # y: (n, 5) of 0 and 1
x_train, y_train, x_test, y_test = x[:600], y[:600], x[600:], y[600:]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))  # a logit a label, no sigmoid


recipe = ge.Recipe(epochs=40, normalize=(x_train.mean(dim=0), x_train.std(dim=0)))
ensemble = ge.fit(make_model, (x_train, y_train), size=4, targets="labels", recipe=recipe)
probs = ensemble.predict_proba(x_test)  # (members, n, 5, 2): the label does not apply, it does
right = (probs.mean(dim=0)[:, :, 1] > 0.5) == y_test
print(f"right in {right.float().mean():.1%} of labels")

known, unknown = ensemble.uncertainty(x_test).epistemic, ensemble.uncertainty(10 * x_test).epistemic  # sums over labels
print(f"mutual information {known.mean():.3f} nats; {unknown.mean():.3f} far from the data")
