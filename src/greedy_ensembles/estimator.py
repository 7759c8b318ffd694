"""The scikit-learn face: `ge.fit` for tables, with scikit-learn's names and habits.

Arguments are kept as given, and what `fit` learns ends in an underscore. Columns are standardised and labels of any
kind are encoded here, so that a table goes in as it is; it works in pipelines, grid searches and cross-validation. The
last step of a pipeline is asked for uncertainty by ``pipeline.score_samples(X)``.
"""

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from greedy_ensembles.checks import check_choice, check_unmasked
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.forms import InputForm
from greedy_ensembles.inputs import device_of
from greedy_ensembles.method import SCHEDULES, Coupling, as_coupling
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.metrics.uncertainty import Uncertainty
from greedy_ensembles.models import MLP
from greedy_ensembles.training import Recipe, SplitError, fit

#: How members are trained unless `recipe` says otherwise. On small tables AdamW needs half the epochs of SGD.
TABLE_RECIPE = Recipe(epochs=50, optimizer="adamw", lr=3e-3, weight_decay=1e-2)


@dataclass(eq=False, repr=False)
class GreedyEnsembleClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An ensemble whose members differ where there is no data, as a scikit-learn classifier.

    Args:
        size: M, the number of members.
        strength: lambda_M, how strongly members repel each other; a `method` without one does not look at it.
        hidden: widths of the hidden layers of each member, a `ge.models.MLP`.
        make_model: builds a model of your own from standardised columns (n, columns) to logits (n, classes), instead of
            the MLP; name a function or use ``functools.partial`` where the estimator is to be pickled.
        method: as in `ge.fit`: "greedy", "deep" for Deep Ensembles, another name, or a `ge.Coupling`.
        weighting: p*, where members are asked to differ, in the space of the table as given; by default a Gaussian
            about the data at five standard deviations.
        recipe: how a member is trained, without `normalize`; None: one that suits tables. Its fields are parameters
            too: ``set_params(recipe__lr=0.01)``, or ``recipe__epochs`` in a grid search.
        schedule: as in `ge.fit`: "sequential", or "concurrent", which is faster on small tables; None: "concurrent",
            or "sequential" where the method needs that.
        class_weight: what the loss of each class is multiplied by, a dict from labels; "balanced": such that all
            classes weigh the same; None: 1. Not for independent labels.
        validation: the share of each class that is held out to select each member's best epoch, as in `ge.fit`. By
            default nothing is: the few rows of a small table are worth more to learn from, and say too little.
        random_state: a seed, which `ge.fit` gets as it is; a ``RandomState`` or None draws a new one at every fit.
        device: where to train; by default CUDA where there is one.
        progress: whether to show a progress bar.

    Attributes:
        classes_: the labels, sorted; of independent labels their numbers.
        ensemble_: the `ge.Ensemble`; it takes the table as given, and says class indices, not labels. Pickles and
            copies of the estimator have it on the CPU; ``ensemble_.to("cuda")`` moves it.
        n_features_in_: the number of columns.
        feature_names_in_: their names, where X has names.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = GreedyEnsembleClassifier(size=2, recipe=Recipe(epochs=10, lr=0.05)).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    >>> classifier.uncertainty(X).epistemic.shape
    (150,)
    """

    size: int = 5
    strength: float | None = 1.0
    hidden: Sequence[int] = (128, 128)
    _: KW_ONLY
    make_model: ModelFactory | None = None
    method: str | Coupling = "greedy"
    weighting: Weighting | None = None
    recipe: Recipe | None = None
    schedule: str | None = None
    class_weight: Mapping[Any, float] | str | None = None
    validation: float = 0.0
    random_state: int | np.random.RandomState | None = 0
    device: torch.device | str | None = None
    progress: bool = False
    classes_: np.ndarray = field(init=False)
    ensemble_: Ensemble = field(init=False)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all arguments; with `deep`, fields of the recipe too, as ``recipe__lr``."""
        recipe = TABLE_RECIPE if self.recipe is None else self.recipe
        nested = fields(recipe) if deep and isinstance(recipe, Recipe) else ()
        return {**super().get_params(deep), **{f"recipe__{one.name}": getattr(recipe, one.name) for one in nested}}

    def set_params(self, **params: Any) -> "GreedyEnsembleClassifier":
        """Set arguments, and fields of the recipe, as ``recipe__lr``."""
        nested = {name.removeprefix("recipe__"): params[name] for name in params if name.startswith("recipe__")}
        super().set_params(**{name: value for name, value in params.items() if not name.startswith("recipe__")})
        for name in nested:
            check_choice("a parameter recipe__...", name, [one.name for one in fields(Recipe)])
        if nested:
            self.recipe = replace(self._recipe(), **nested)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GreedyEnsembleClassifier":
        """Train the members.

        Args:
            X: a table (n, columns), dense or sparse; a sparse one is made dense, since its columns are standardised.
            y: its labels, (n,); or independent labels, an indicator matrix (n, labels) of 0 and 1.
            sample_weight: what the loss of each row is multiplied by, (n,), scaled to a mean of 1. Rows of weight 0
                count as not there.
        """
        check_unmasked("y", y)
        X, y = self._validated(X, y, multi_output=True)
        try:
            check_classification_targets(y)
        except ValueError as error:
            raise ValueError(f"y will not do: {error}") from None
        independent = type_of_target(y) == "multilabel-indicator"
        y = (y.toarray() if issparse(y) else y) if independent else column_or_1d(y, warn=True)
        if independent and self.class_weight is not None:
            raise ValueError("class_weight is for classes, not for independent labels; use sample_weight")
        rows, y, weights = self._weighted(X, y, sample_weight)
        self.classes_, labels = (np.arange(y.shape[1]), y) if independent else np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class, {self.classes_[0]}; a classifier needs at least two")
        if not isinstance(self.validation, Real):
            raise TypeError(
                f"validation must be a share of the rows, got {type(self.validation).__name__}; ge.fit takes data of "
                "its own, as members take it: standardised, with class indices for labels"
            )
        train = partial(self._trained, rows, labels, weights, self._seed())
        try:
            self.ensemble_ = train(self.validation)
        except SplitError as error:
            warnings.warn(f"no validation split, so each member's last epoch is kept: {error}", stacklevel=2)
            self.ensemble_ = train(0, recipe=replace(self._recipe(), patience=None, select_by="accuracy"))
        self.ensemble_.notes["Data"] = f"a table of {X.shape[0]:,} rows and {X.shape[1]:,} columns"
        return self

    def _trained(
        self,
        X: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None,
        seed: int,
        validation: float,
        recipe: Recipe | None = None,
    ) -> Ensemble:
        """Return an ensemble that takes tables as given: standardising is a part of it, also saved or exported."""
        if validation == 0:
            X, labels, weights = _in_one_batch(X, labels, weights, self._recipe().batch_size)
        if weights is not None:
            weights = None if (weights == weights[0]).all() else weights / weights.mean()
        scaler = StandardScaler().fit(X, sample_weight=weights)
        weighting = self.weighting
        # The default is made in the space of standardised columns, where single precision has the digits for it; and
        # what is no distribution is left for `ge.fit` to refuse.
        if weighting is not None and callable(getattr(weighting, "sample", None)):
            weighting = _Standardised(weighting, scaler.mean_, scaler.scale_)
        members = fit(
            self.make_model or partial(MLP, X.shape[1], self.hidden, len(self.classes_)),
            (scaler.transform(X), labels, weights),
            size=self.size,
            method=self.method,
            strength=self.strength,
            weighting=weighting,
            recipe=recipe or self._recipe(),
            targets="labels" if labels.ndim == 2 else "classes",
            schedule=self._schedule() if self.schedule is None else self.schedule,
            seed=seed,
            validation=validation,
            device=self.device,
            progress=self.progress,
        )
        width = members.predict_log_proba(scaler.transform(X[:1])).shape[2]
        if width != len(self.classes_):
            raise ValueError(f"make_model returns {width} logits, and y has {len(self.classes_)} classes")
        names = getattr(self, "feature_names_in_", None)
        form = InputForm((X.shape[1],), torch.float64, columns=None if names is None else tuple(map(str, names)))
        of_columns = (scaler.mean_, scaler.scale_)
        return Ensemble(members, of_columns, inputs=form, notes=members.notes, targets=members.targets)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied: members on the CPU, so that a machine without their device can read it."""
        state: dict[str, Any] = dict(super().__getstate__())  # what it returns is the estimator's own
        if "ensemble_" in state:
            there = all(device_of(member).type == "cpu" for member in self.ensemble_)
            state["ensemble_"] = self.ensemble_ if there else copy.deepcopy(self.ensemble_).to("cpu")
        return state

    def _weighted(self, X: Any, y: np.ndarray, given: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the rows that count, as an array, their labels, and weights above 0; None: none were given."""
        weights = None
        if given is not None or self.class_weight is not None:
            weights = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
            weights = weights * (1 if self.class_weight is None else compute_sample_weight(self.class_weight, y))
            if not np.isfinite(weights).all() or not weights.any():
                raise ValueError("sample_weight and class_weight must be finite, and leave some rows of weight above 0")
            counts = weights > 0
            X, y, weights = X[counts], y[counts], weights[counts]
        return (X.toarray() if issparse(X) else X), y, weights

    def _recipe(self) -> Recipe:
        recipe = TABLE_RECIPE if self.recipe is None else self.recipe
        if not isinstance(recipe, Recipe):
            raise TypeError(f"recipe must be a ge.Recipe or None, got {recipe!r}")
        if recipe.normalize is not None:
            raise ValueError("recipe must leave normalize out: the estimator standardises every column itself")
        return recipe

    def _schedule(self) -> str:
        coupling = copy.copy(as_coupling(self.method))
        try:
            coupling.size = self.size
            coupling.check(self._recipe(), SCHEDULES["concurrent"])
        except (ValueError, TypeError, ArithmeticError):  # what else there is to refuse, `ge.fit` will name
            return "sequential"
        return "concurrent"

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError as error:
            raise ValueError(f"random_state must be a seed, a RandomState or None: {error}") from None

    def _validated(self, X: Any, *y: Any, **how: Any) -> Any:
        """Return what scikit-learn makes of a table and labels, or refuse them by name."""
        check_unmasked("X", X)
        try:
            return validate_data(self, X, *y, dtype=np.float64, accept_sparse="csr", **how)
        except (ValueError, TypeError) as error:
            if re.search(r"\b[Xy]\b", str(error)):
                raise
            raise type(error)(f"X will not do: {error}") from None

    def _member_probabilities(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        return self.ensemble_.predict_proba(X.toarray() if issparse(X) else X).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the mean of the members' class probabilities, (n, classes), in the order of `classes_`.

        Of independent labels: the probability that each applies, (n, labels).
        """
        mean: np.ndarray = self._member_probabilities(X).mean(axis=0)
        return mean if mean.ndim == 2 else mean[:, :, 1]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label of every row; of independent labels 1 for those that probably apply."""
        probabilities = self.predict_proba(X)
        if self.ensemble_.targets == "labels":
            return (probabilities > 0.5).astype(np.int64)
        indices = probabilities.argmax(axis=1)
        labels: np.ndarray = self.classes_[indices]
        return labels

    def uncertainty(self, X: Any) -> Uncertainty[np.ndarray]:
        """Return how uncertain the ensemble is about every row, and why: epistemic, aleatoric, total, in nats."""
        return Uncertainty.of(self._member_probabilities(X))

    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal every row is, (n,): minus the mutual information, so that higher is more normal."""
        return -self.uncertainty(X).epistemic


def _in_one_batch(
    X: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, batch_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return a table that is one batch in an order of its own, its rows as often as their weights say.

    Every step sees all of such a table, so that its order is of no matter, up to rounding. A row of weight 2 and two
    equal rows then are the same to the bit, as scikit-learn wants it. Other tables are returned as they are.
    """
    if weights is not None:
        whole = bool((weights == np.round(weights)).all())
        times = weights if whole else weights / weights.min()
        if times.sum() <= batch_size and np.allclose(times, np.round(times), rtol=1e-9, atol=0):
            count = np.round(times).astype(np.int64)
            X, labels, weights = X.repeat(count, axis=0), labels.repeat(count, axis=0), None
    if len(X) > batch_size:
        return X, labels, weights
    order = np.lexsort(np.c_[X, labels].T)
    return X[order], labels[order], None if weights is None else weights[order]


@dataclass(frozen=True)
class _Standardised:
    """A distribution over rows of a table as given, as one over standardised rows."""

    weighting: Weighting
    mean: np.ndarray
    scale: np.ndarray

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        rows = self.weighting.sample(n, generator)
        shape = (n, len(self.mean))
        if rows.shape != shape:  # before anything could broadcast
            raise ValueError(f"{n} samples of weighting should have shape {shape}, got {tuple(rows.shape)}")
        standardised: torch.Tensor = (rows.double() - torch.from_numpy(self.mean)) / torch.from_numpy(self.scale)
        return standardised.float()
