import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from greedy_ensembles.metrics import knn_distance, mahalanobis_distance


@given(st.integers(0, 1000), st.integers(1, 20), st.integers(2, 6))
def test_neighbours_against_scikit_learn(seed, k, width):
    rng = np.random.default_rng(seed)
    features, reference = rng.normal(size=(7, width)), 3 * rng.normal(size=(20, width))
    neighbours = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(normalize(reference))
    expected = neighbours.kneighbors(normalize(features))[0][:, -1]
    np.testing.assert_allclose(knn_distance(features, reference, k), expected, atol=1e-7)


def test_neighbours_are_of_normalised_features_and_the_kth_counts():
    features, reference = torch.tensor([[1.0, 0.0]]), torch.tensor([[50.0, 0.0], [0.0, 1.0], [0.0, 9.0]])
    assert knn_distance(features, reference, 1).item() == pytest.approx(0, abs=1e-7)  # unscaled it would be 49, or 1.4
    assert knn_distance(features, reference, 2).item() == pytest.approx(2**0.5)  # their mean would be half of it


def by_scikit_learn(features, reference, labels):
    means = {label: reference[labels == label].mean(axis=0) for label in set(labels.tolist())}
    around = np.stack([row - means[label] for row, label in zip(reference, labels.tolist(), strict=True)])
    precision = EmpiricalCovariance(assume_centered=True).fit(around).precision_
    return [min((row - mean) @ precision @ (row - mean) for mean in means.values()) for row in features]


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 5))
def test_mahalanobis_against_scikit_learn(seed, classes, width):
    rng = np.random.default_rng(seed)
    labels = np.arange(40) % classes
    reference = (
        rng.normal(size=(40, width)) @ rng.normal(size=(width, width)) + 4 * rng.normal(size=(classes, width))[labels]
    )
    features = 5 * rng.normal(size=(6, width))
    expected = by_scikit_learn(features, reference, labels)
    np.testing.assert_allclose(mahalanobis_distance(features, reference, labels), expected, rtol=1e-6)


def test_mahalanobis_shares_a_covariance_around_the_class_means():
    """A covariance around the common mean would make everything between the classes look near."""
    reference = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [9.0, 0.0], [11.0, 0.0]])
    features, labels = torch.tensor([[5.0, 0.0], [10.0, 0.0]]), torch.tensor([3, 3, 7, 7])
    assert mahalanobis_distance(features, reference, labels).tolist() == pytest.approx([25, 0])
    # The second direction does not vary in the reference, and has no say.
    assert mahalanobis_distance(features + torch.tensor([0.0, 4.0]), reference, labels).tolist() == pytest.approx(
        [25, 0]
    )


def test_the_kind_of_the_features_comes_back():
    features, labels = torch.randn(60, 3), torch.arange(60) % 2
    for distances in (
        knn_distance(features.numpy(), features),
        mahalanobis_distance(features.numpy(), features, labels),
    ):
        assert isinstance(distances, np.ndarray)
        assert distances.shape == (60,)
    assert isinstance(knn_distance(features, features.numpy()), torch.Tensor)


def test_a_reference_of_another_width_is_refused():
    with pytest.raises(ValueError, match="reference must hold features of 3 values"):
        knn_distance(torch.ones(10, 3), torch.ones(10, 2))
