"""The classifier's weights of rows and classes, and sparse tables."""

from functools import partial

import numpy as np
import pytest
from scipy import sparse
from tests.test_estimator import ONE_BATCH, QUICK, X, Y, classifier
from torch import nn

import greedy_ensembles as ge


def test_a_weight_counts_as_often_as_rows_of_it():
    """In a table that is one batch, to the bit; rows of weight 0 are not there, and scales of weights do not matter."""
    few, labels = X[:25], Y[:25]
    times = np.random.default_rng(0).integers(0, 4, 25)
    fitted = classifier(recipe=ONE_BATCH).fit(few, labels, sample_weight=times / 7)
    repeated = classifier(recipe=ONE_BATCH).fit(few.repeat(times, axis=0)[::-1], labels.repeat(times)[::-1])
    assert np.array_equal(fitted.predict_proba(X), repeated.predict_proba(X))
    assert not np.allclose(fitted.predict_proba(X), classifier(recipe=ONE_BATCH).fit(few, labels).predict_proba(X))


def test_a_table_that_is_one_batch_trains_as_by_ge_fit_but_for_rounding():
    fitted = classifier(recipe=ONE_BATCH, method="deep").fit(np.r_[X, X[:60]], np.r_[Y, Y[:60]])
    whole = np.r_[X, X[:60]]
    standardised = (whole - whole.mean(axis=0)) / whole.std(axis=0)
    options = {"size": 2, "method": "deep", "recipe": ONE_BATCH, "validation": 0, "progress": False, "device": "cpu"}
    by_hand = ge.fit(partial(ge.models.MLP, 6, (16,), 3), (standardised, np.r_[Y, Y[:60]]), **options)
    np.testing.assert_allclose(fitted.predict_proba(whole), by_hand.predict_proba(standardised).mean(dim=0), atol=1e-4)


def with_batchnorm():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_repeated_rows_stay_what_p_star_and_batchnorm_see():
    table, labels = np.r_[X[:20], X[:1].repeat(30, axis=0)], np.r_[Y[:20], Y[:1].repeat(30)]
    standardised = (table - table.mean(axis=0)) / table.std(axis=0)
    far = 9 * np.random.default_rng(0).normal(size=(50, 6))
    fitted = classifier(recipe=ONE_BATCH, make_model=with_batchnorm).fit(table, labels)
    options = {"recipe": ONE_BATCH, "validation": 0, "schedule": "concurrent", "progress": False, "device": "cpu"}
    by_hand = ge.fit(with_batchnorm, (standardised, labels), size=2, **options)
    for found, expected in (
        (fitted.ensemble_.predict_proba(far * table.std(axis=0) + table.mean(axis=0)), by_hand.predict_proba(far)),
        (fitted.ensemble_.predict_proba(table), by_hand.predict_proba(standardised)),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("recipe", [QUICK, ONE_BATCH], ids=["batches", "one batch"])
def test_class_weights_are_weights_of_rows(recipe):
    weights = {0: 5.0, 1: 1.0, 2: 0.5}
    by_class = classifier(class_weight=weights, recipe=recipe).fit(X, Y)
    by_row = classifier(recipe=recipe).fit(X, Y, sample_weight=[weights[label] for label in Y])
    assert np.array_equal(by_class.predict_proba(X), by_row.predict_proba(X))
    both = classifier(class_weight=weights, recipe=recipe).fit(X, Y, sample_weight=[1 / weights[label] for label in Y])
    np.testing.assert_allclose(both.predict_proba(X), classifier(recipe=recipe).fit(X, Y).predict_proba(X), atol=1e-5)


def test_balanced_classes_weigh_the_same():
    rare = np.r_[np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y != 0)]
    noise = 6 * np.random.default_rng(0).normal(size=(len(rare), 6))  # so that the prior decides much
    found = [
        classifier(class_weight=w).fit(X[rare] + noise, Y[rare]).predict_proba(X)[:, 0].mean()
        for w in (None, "balanced")
    ]
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_array, sparse.coo_matrix])
def test_sparse_tables_are_dense_ones(kind):
    table = np.where(X > 0.5, X, 0.0)
    dense, thin = classifier().fit(table, Y), classifier().fit(kind(table), Y)
    assert np.array_equal(thin.predict_proba(kind(table)), dense.predict_proba(table))
    assert np.array_equal(thin.score_samples(kind(table)), dense.score_samples(table))
