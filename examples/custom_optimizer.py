"""An optimizer of your own: a callable from parameters to a torch.optim.Optimizer.

It brings its own learning rate, which the recipe's schedule multiplies; schedule="constant" leaves it alone.
"""

from collections.abc import Iterable

import torch
from sklearn.datasets import make_moons

import greedy_ensembles as ge

x, y = make_moons(300, noise=0.3, random_state=0)


def rmsprop(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.003)


ensemble = ge.fit(
    lambda: ge.models.MLP(2, hidden=(32, 32)),
    (x, y),
    size=3,
    strength=1.0,
    recipe=ge.Recipe(epochs=30, optimizer=rmsprop, schedule="constant"),
)
accuracy = (ensemble.predict_proba(x).mean(dim=0).argmax(dim=1) == torch.from_numpy(y)).float().mean()
print(f"accuracy with RMSprop: {accuracy:.3f}")
