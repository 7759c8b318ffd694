"""Ray Tune searches, and ends trials early: a callback reports each epoch. It needs `pip install 'ray[tune]'`."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import make_moons

import greedy_ensembles as ge


def train(config: dict[str, float]) -> None:
    report = [lambda epoch: tune.report({"epochs": epoch.done, "accuracy": epoch.validation_accuracy})]
    recipe = ge.Recipe(epochs=20, lr=config["lr"])
    ge.fit(lambda: ge.models.MLP(2), make_moons(300), size=3, recipe=recipe, callbacks=report, progress=False)


space = {"lr": tune.grid_search([0.1, 1e-3, 1e-5])}
ends = ASHAScheduler("epochs", "accuracy", "max", grace_period=5, max_t=60)  # 3 members of 20 epochs each
found = tune.Tuner(train, param_space=space, tune_config=tune.TuneConfig(scheduler=ends)).fit()
print(f"best: {found.get_best_result('accuracy', 'max').config}")
