import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import greedy_ensembles as ge
from greedy_ensembles.estimator import TABLE_RECIPE
from greedy_ensembles.method import METHODS

X, Y = make_classification(120, 6, n_informative=4, n_classes=3, class_sep=2.0, random_state=0)
QUICK = ge.Recipe(epochs=20, batch_size=32, lr=0.05)
ONE_BATCH = ge.Recipe(epochs=20, batch_size=256, lr=0.05)


def classifier(**options):
    return ge.GreedyEnsembleClassifier(**{"size": 2, "hidden": (16,), "recipe": QUICK, "device": "cpu"} | options)


@parametrize_with_checks([ge.GreedyEnsembleClassifier(device="cpu")])  # as it is by default
def test_all_of_scikit_learns_own_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without which scikit-learn leaves its check of other arrays out
    check(estimator)


def test_it_is_ge_fit_on_the_standardised_table():
    fitted = classifier(random_state=3, strength=2.0).fit(X, Y)
    # By hand, with p* about the table as it was given: at five standard deviations, whatever the units.
    standardised = (X - X.mean(axis=0)) / X.std(axis=0)
    by_hand = ge.fit(
        partial(ge.models.MLP, 6, (16,), 3),
        (standardised, Y),
        size=2,
        strength=2.0,
        recipe=QUICK,
        seed=3,
        validation=0,
        schedule="concurrent",
        progress=False,
        device="cpu",
    )
    expected = by_hand.predict_proba(standardised)
    np.testing.assert_allclose(fitted.predict_proba(X), expected.mean(dim=0), atol=1e-4)
    for found, value in zip(fitted.uncertainty(X), by_hand.uncertainty(standardised), strict=True):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, value, atol=1e-4)
    assert fitted.score(X, Y) == (expected.mean(dim=0).argmax(dim=1).numpy() == Y).mean()


def test_units_and_offsets_of_columns_do_not_matter():
    plain = classifier().fit(X, Y)
    # A column of timestamps varies in digits that single precision does not have.
    scale, offset = np.array([1e-6, 1, 1e3, 1e6, 1, 1]), np.array([0, 1e6, 0, 0, 1.7e8, -50])
    moved = classifier().fit(X * scale + offset, Y)
    np.testing.assert_allclose(moved.predict_proba(X * scale + offset), plain.predict_proba(X), atol=1e-4)
    constant = np.c_[X, np.full(len(X), 7.0)]
    assert np.isfinite(classifier().fit(constant, Y).predict_proba(constant)).all()


def test_the_ensemble_takes_the_table_as_it_is():
    fitted = classifier().fit(100 * X + 5, Y)
    assert isinstance(fitted.ensemble_, ge.Ensemble)
    probs = fitted.ensemble_.predict_proba(100 * X + 5)
    np.testing.assert_allclose(fitted.predict_proba(100 * X + 5), probs.mean(dim=0), atol=1e-6)


@pytest.mark.parametrize(
    "names",
    [["b", "a", "c"], [10, -3, 7], [True, False, True], [0.0, 2.0, 1.0]],
    ids=["text", "numbers", "bool", "float"],
)
def test_labels_of_any_kind(names):
    names = np.array(names)
    labels = names[Y]
    fitted = classifier().fit(X, labels)
    assert fitted.classes_.tolist() == sorted(set(names.tolist()))
    assert fitted.predict(X).dtype == labels.dtype
    assert fitted.score(X, labels) > 0.8
    # Columns of the probabilities are in the order of classes_.
    probs = fitted.predict_proba(X)
    assert log_loss(labels, probs, labels=fitted.classes_) < 0.6
    assert probs.shape == (120, len(fitted.classes_))


def test_clones_pickles_and_repeats():
    original = classifier(random_state=5)
    copied = clone(original).fit(X, Y)
    assert not hasattr(original, "ensemble_")
    read = pickle.loads(pickle.dumps(copied))
    assert np.array_equal(read.predict_proba(X), copied.predict_proba(X))
    assert np.array_equal(original.fit(X, Y).predict_proba(X), copied.predict_proba(X))
    other = classifier(random_state=6).fit(X, Y)
    assert not np.array_equal(other.predict_proba(X), copied.predict_proba(X))


class Elsewhere(torch.nn.Linear):
    """A layer that cannot be pickled before it is moved, as one on a device that the reader has not."""

    moved = False

    def parameters(self, recurse=True):
        return iter([torch.empty(1, device="cpu" if self.moved else "meta")])

    def to(self, device):
        assert torch.device(device) == torch.device("cpu")
        self.moved = True
        return self

    def __getstate__(self):
        assert self.moved
        return super().__getstate__()

    def __deepcopy__(self, memo):
        copied = Elsewhere(self.in_features, self.out_features)
        copied.load_state_dict(self.state_dict())
        return copied


def test_a_pickle_holds_members_on_the_cpu_and_leaves_them_where_they_are():
    fitted = classifier().fit(X, Y)
    members = [Elsewhere(2, len(fitted.classes_)) for _ in range(2)]
    fitted.ensemble_ = ge.Ensemble(members, fitted.ensemble_.normalize)
    read = pickle.loads(pickle.dumps(fitted))
    assert [member.moved for member in members] == [False, False]
    assert list(fitted.ensemble_) == members
    assert [member.moved for member in read.ensemble_] == [True, True]
    assert read.ensemble_.normalize == fitted.ensemble_.normalize
    for one, other in zip(members, read.ensemble_, strict=True):
        assert torch.equal(one.weight, other.weight)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_what_was_fitted_on_a_gpu_is_read_without_one(tmp_path):
    fitted = classifier(device="cuda").fit(X, Y)
    assert next(fitted.ensemble_[0].parameters()).is_cuda
    (tmp_path / "classifier.pickle").write_bytes(pickle.dumps(fitted))
    np.save(tmp_path / "x.npy", X)
    code = (
        "import pickle, sys, numpy as np, torch; assert not torch.cuda.is_available(); "
        "fitted = pickle.load(open('classifier.pickle', 'rb')); "
        "np.save('probs.npy', fitted.predict_proba(np.load('x.npy')))"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    np.testing.assert_allclose(np.load(tmp_path / "probs.npy"), fitted.predict_proba(X), atol=1e-5)
    assert next(fitted.ensemble_[0].parameters()).is_cuda


def test_random_state_may_be_a_generator_or_none():
    first, second = (classifier(random_state=np.random.RandomState(0)).fit(X, Y) for _ in range(2))
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    state = np.random.RandomState(0)
    used = [classifier(random_state=state).fit(X, Y).predict_proba(X) for _ in range(2)]
    assert not np.array_equal(*used)
    fresh = [classifier(random_state=None).fit(X, Y).predict_proba(X) for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_pipelines_grid_searches_and_cross_validation():
    search = GridSearchCV(make_pipeline(PCA(4), classifier()), {"greedyensembleclassifier__strength": [0.0, 3.0]}, cv=2)
    search.fit(X, Y)
    assert search.best_params_["greedyensembleclassifier__strength"] in (0.0, 3.0)
    assert search.best_estimator_[-1].ensemble_.normalize is not None
    scores = cross_val_score(classifier(), X, Y, cv=2, scoring="neg_log_loss")
    assert (scores < 0).all()
    assert (scores > -np.log(3)).all()


def test_strength_moves_members_apart_far_from_the_data():
    far = X + 10 * X.std(axis=0) * np.random.default_rng(0).choice([-1, 1], X.shape)
    calm, apart = (classifier(strength=strength, size=4).fit(X, Y) for strength in (0.0, 30.0))
    assert apart.uncertainty(far).epistemic.mean() > 2 * calm.uncertainty(far).epistemic.mean()


def test_where_no_stratified_split_is_possible_it_trains_without_and_says_so():
    few = np.r_[X[:20], X[:1]]
    labels = np.r_[np.arange(20) % 2, 2]  # one example of class 2
    with pytest.warns(UserWarning, match="no validation split, .*last epoch .*: class 2 has one"):
        fitted = classifier(validation=0.2).fit(few, labels)
    assert np.array_equal(fitted.predict_proba(few), classifier(validation=0).fit(few, labels).predict_proba(few))
    selecting = classifier(validation=0.2, recipe=replace(QUICK, patience=1, select_by="nll"))
    with pytest.warns(UserWarning, match="no validation split"):
        assert len(selecting.fit(few, labels).ensemble_) == 2
    with pytest.raises(ValueError, match="validation must be a share of the data"):
        classifier(validation=1.5).fit(few, labels)


def test_a_validation_split_is_used_where_asked_for():
    held_out, everything = (classifier(validation=v).fit(X, Y).predict_proba(X) for v in (0.2, 0.0))
    assert not np.allclose(held_out, everything)


def test_scores_of_samples_are_higher_where_it_is_normal_also_in_a_pipeline():
    pipeline = make_pipeline(PCA(4), classifier(strength=3.0, size=4)).fit(X, Y)
    far = X + 10 * X.std(axis=0) * np.random.default_rng(0).choice([-1, 1], X.shape)
    assert pipeline.score_samples(X).mean() > pipeline.score_samples(far).mean() + 0.1
    inside = pipeline[-1].uncertainty(pipeline[:-1].transform(far)).epistemic
    assert np.array_equal(pipeline.score_samples(far), -inside)


def test_fields_of_the_recipe_are_parameters():
    estimator = ge.GreedyEnsembleClassifier()
    assert estimator.get_params()["recipe__lr"] == TABLE_RECIPE.lr
    assert "recipe__lr" not in estimator.get_params(deep=False)
    estimator.set_params(recipe__lr=0.5, size=3)
    assert (estimator.recipe, estimator.size) == (replace(TABLE_RECIPE, lr=0.5), 3)
    assert clone(estimator).recipe == estimator.recipe
    assert estimator.set_params(recipe__epochs=7, recipe=QUICK).recipe == replace(QUICK, epochs=7)
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        estimator.set_params(recipe__epoch=7)
    with pytest.raises(ValueError, match="Invalid parameter 'recip'"):
        estimator.set_params(recip__epochs=7)
    methods = [name for name in METHODS if name != "dropout"]  # which needs a make_model with dropout
    grid = {"recipe__epochs": [2, 20], "method": methods}
    search = GridSearchCV(classifier(), grid, cv=2, error_score="raise").fit(X, Y)
    assert search.best_params_["recipe__epochs"] == 20
    assert search.best_estimator_.recipe == QUICK


def test_schedules():
    assert all(
        np.isfinite(classifier(schedule=s).fit(X, Y).predict_proba(X)).all() for s in ("sequential", "concurrent")
    )
    with pytest.raises(ValueError, match="did you mean 'concurrent'"):
        classifier(schedule="concurent").fit(X, Y)


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


def test_a_model_of_your_own():
    fitted = classifier(make_model=Wide).fit(X, Y)
    assert all(isinstance(member, Wide) for member in fitted.ensemble_)


def test_an_interrupt_advises_nothing_that_fit_of_the_estimator_cannot_do():
    class Pressed(torch.nn.Linear):
        passes = 0

        def forward(self, x):
            Pressed.passes += 1
            if Pressed.passes == 20:  # well after the model was tried
                raise KeyboardInterrupt
            return super().forward(x)

    with pytest.raises(KeyboardInterrupt) as raised:
        ge.GreedyEnsembleClassifier(make_model=partial(Pressed, 6, 3)).fit(X, Y)
    (note,) = raised.value.__notes__
    assert "ge.fit(..., run_dir=...)" in note
    assert "same call" not in note


def test_p_star_lives_in_the_space_of_the_table():
    table = 100 * X + 7
    given = ge.weighting.Gaussian(*(value(table, axis=0) for value in (np.mean, np.std)))
    as_given, by_default = (classifier(weighting=one, strength=3.0).fit(table, Y) for one in (given, None))
    np.testing.assert_allclose(as_given.predict_proba(table), by_default.predict_proba(table), atol=1e-3)
    # A cloud far from the table: with p* there, members differ there.
    cloud = table.mean(axis=0) + 1000 * np.ones(6)
    near_cloud = ge.weighting.Gaussian(cloud, np.full(6, 10.0), scale=1.0)
    fitted = classifier(weighting=near_cloud, strength=30.0, size=3).fit(table, Y)
    calm = classifier(strength=0.0, size=3).fit(table, Y)
    assert fitted.uncertainty(cloud[None]).epistemic > calm.uncertainty(cloud[None]).epistemic + 0.2


def test_deep_ensembles():
    deep = classifier(method="deep", strength=None).fit(X, Y).predict_proba(X)
    assert np.array_equal(deep, classifier(strength=0.0).fit(X, Y).predict_proba(X))


def test_a_method_without_strength_does_not_look_at_it():
    search = GridSearchCV(classifier(), {"method": ["deep", "greedy"]}, cv=2, error_score="raise").fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    alike = (classifier(method="deep", strength=strength).fit(X, Y).predict_proba(X) for strength in (1.0, -1.0))
    assert np.array_equal(*alike)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strength": None}, TypeError, r"strength \(lambda_M\) must be a number, got None"),
        ({"hidden": 128}, TypeError, r"hidden must be the widths of layers, such as \(128, 128\), got 128"),
        ({"recipe": ge.Recipe(normalize=(0.0, 1.0))}, ValueError, "recipe must leave normalize out"),
        ({"random_state": "lucky"}, ValueError, "'lucky' cannot be used to seed"),
        ({"device": "gpu"}, ValueError, "did you mean 'cuda'"),
        ({"make_model": partial(ge.models.MLP, 6, (8,), 9)}, ValueError, "make_model returns 9 logits, and y has"),
        (
            {"weighting": ge.weighting.Uniform(0, 1, (1,))},
            ValueError,
            r"samples of weighting should have shape \(2, 6\), got \(2, 1\)",
        ),
    ],
)
def test_bad_arguments_are_refused_by_fit_not_by_init(options, error, message):
    estimator = classifier(**options)
    with pytest.raises(error, match=message):
        estimator.fit(X, Y)


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match=r"y holds one class, cat; .*at least two"):
        classifier().fit(X, np.full(120, "cat"))
    with pytest.raises(NotFittedError):
        classifier().predict(X)
    with pytest.raises(ValueError, match=r"X has 5 features, .* expecting 6"):
        classifier().fit(X, Y).uncertainty(X[:, :5])


def test_the_defaults_learn_a_table_well():
    x, y = load_digits(return_X_y=True)
    fitted = ge.GreedyEnsembleClassifier(device="cpu").fit(x[::2], y[::2])
    assert fitted.score(x[1::2], y[1::2]) > 0.95
    assert TABLE_RECIPE.normalize is None
