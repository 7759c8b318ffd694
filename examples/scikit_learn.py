"""Inside scikit-learn: a pipeline, a grid search over method and recipe, weights of classes, and one score per row."""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

import greedy_ensembles as ge

x, y = load_wine(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0, stratify=y)

pipeline = make_pipeline(PowerTransformer(), ge.GreedyEnsembleClassifier(size=4, class_weight="balanced"))
grid = {
    "greedyensembleclassifier__method": ["greedy", "deep"],
    "greedyensembleclassifier__recipe__lr": [1e-3, 1e-2],  # any field of ge.Recipe
}
search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(x_train, y_train)
print(f"best: {search.best_params_}, test accuracy {search.best_estimator_.score(x_test, y_test):.2f}")

# Wines that cannot be: each column drawn from another one.
mixed = np.random.default_rng(0).permuted(x_test, axis=0)
normal, strange = (search.score_samples(rows) for rows in (x_test, mixed))  # minus the mutual information
print(f"detection of mixed wines: AUROC {ge.metrics.auroc(-normal, -strange):.2f}")
