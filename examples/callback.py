"""A callback hears of every epoch: here it keeps the diversity term, to see how far each member was pushed."""

from collections import defaultdict

from sklearn.datasets import make_moons

import greedy_ensembles as ge

x, y = make_moons(300, noise=0.3, random_state=0)
terms: dict[int, list[float]] = defaultdict(list)


def listen(epoch: ge.Epoch) -> None:
    if epoch.diversity is not None:  # the first member has no one to differ from
        terms[epoch.member].append(epoch.diversity)


ge.fit(
    lambda: ge.models.MLP(2, hidden=(32, 32)),
    (x, y),
    size=4,
    strength=10.0,
    recipe=ge.Recipe(epochs=30),
    callbacks=[listen],
)
for member, values in terms.items():
    print(f"member {member}: diversity term {values[0]:+.3f} in its first epoch, {values[-1]:+.3f} in its last")
