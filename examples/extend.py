"""Grow an ensemble later: a finished run folder asked for a larger size trains only the members that are missing."""

import tempfile
from functools import partial

from sklearn.datasets import make_moons

import greedy_ensembles as ge

x, y = make_moons(300, noise=0.3, random_state=0)
fit = partial(
    ge.fit,
    partial(ge.models.MLP, 2, hidden=(32, 32)),
    (x, y),
    strength=1.0,
    recipe=ge.Recipe(epochs=30),
)

with tempfile.TemporaryDirectory() as folder:
    three = fit(size=3, run_dir=folder)
    five = fit(size=5, run_dir=folder)  # members 4 and 5, against the three that are there
    elsewhere = fit(size=5, earlier=three)  # the same, for members that did not come from a folder
    run = ge.load_run(folder)
    print(f"{len(five)} members, the last one trained {len(run.histories[-1])} epochs")
    same = bool((five.predict_proba(x) == elsewhere.predict_proba(x)).all())
    print(f"both ways give the same ensemble: {same}")
