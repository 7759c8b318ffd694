"""Ray Tune searches, and ends trials early: a callback reports each epoch. It needs `pip install 'ray[tune]'`."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import make_moons

import greedy_ensembles as ge

x, y = make_moons(300, noise=0.3, random_state=0)


def train(config: dict[str, float]) -> None:
    ge.fit(
        lambda: ge.models.MLP(2, hidden=(32, 32)),
        (x, y),
        size=3,
        strength=config["strength"],
        recipe=ge.Recipe(epochs=20, lr=config["lr"]),
        callbacks=[lambda epoch: tune.report({"epochs": epoch.done, "accuracy": epoch.validation_accuracy})],
        progress=False,
    )


space = {"strength": tune.grid_search([1.0, 10.0]), "lr": tune.grid_search([0.01, 0.1])}
ends = ASHAScheduler(time_attr="epochs", metric="accuracy", mode="max", grace_period=20, max_t=60)  # 3 members, 20 each
found = tune.Tuner(train, param_space=space, tune_config=tune.TuneConfig(scheduler=ends)).fit()
print(f"best: {found.get_best_result('accuracy', 'max').config}")
