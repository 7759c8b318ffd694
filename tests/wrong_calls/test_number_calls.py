"""Wrong calls of what only computes: metrics, theory and networks."""

import numpy as np
import pytest
import torch
from tests.wrong_calls.table import INF, NAN, assert_refused, wrong

import greedy_ensembles as ge
from greedy_ensembles import metrics, theory

COUNTS = [0, -1, 1.5, "3", None, True]
P, L = np.full((4, 2), 0.5), np.array([0, 1, 0, 1])
BAD_PROBS = [None, 3.0, P.tolist(), P[0], P.astype(int), P * 2, -P, P * NAN, P[:0], np.ma.masked_array(P, mask=P > 1)]
BAD_LABELS = [
    None, L.tolist(), L[:3], L.astype(float), L - 1, L + 1, L[:, None], L.astype(np.uint64) + np.uint64(2**63),
    np.ma.masked_array(L, mask=L > 0), L.astype(str),
]  # fmt: skip
SCORES = {"id_scores": np.array([0.0, 1.0]), "ood_scores": np.array([1.0, 2.0])}
BAD_SCORES = [
    None, 1.0, [0.0, 1.0], np.array(["a"]), np.zeros((2, 1)), np.zeros(0), np.array([NAN]), np.array([INF]),
    np.array([1, 2]), np.ma.masked_array([0.0, 1.0], mask=[0, 1]),
]  # fmt: skip
MEMBERS = np.stack([P, P])
NOTHING = [MEMBERS[:0], MEMBERS[..., :0]]
BAD_MEMBERS = [None, P, P.tolist(), MEMBERS * 2, -MEMBERS, MEMBERS * NAN, MEMBERS.astype(int), *NOTHING]
FEATURES, REFERENCE = np.zeros((3, 2)), np.random.default_rng(0).normal(size=(8, 2))
BAD_FEATURES = [None, FEATURES[0], FEATURES.tolist(), FEATURES * NAN, np.zeros((3, 5)), FEATURES.astype(int)]

OF_LABELS = (
    metrics.accuracy, metrics.negative_log_likelihood, metrics.brier_score, metrics.adaptive_calibration_error,
    metrics.expected_calibration_error,
)  # fmt: skip
OF_SCORES = (
    metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr, metrics.roc_curve, metrics.precision_recall_curve,
    metrics.balanced_threshold,
)  # fmt: skip
OF_MEMBERS = (
    metrics.mutual_information, metrics.predictive_entropy, metrics.expected_entropy, metrics.mean_pairwise_kl,
    metrics.max_probability,
)  # fmt: skip
CASES = [
    *(case for call in OF_LABELS for case in wrong(call, {"labels": L}, probs=BAD_PROBS)),
    *(case for call in OF_LABELS for case in wrong(call, {"probs": P}, labels=BAD_LABELS)),
    *(case for call in OF_LABELS[3:] for case in wrong(call, {"probs": P, "labels": L}, bins=COUNTS)),
    *(case for call in OF_SCORES for case in wrong(call, SCORES, id_scores=BAD_SCORES, ood_scores=BAD_SCORES)),
    *wrong(metrics.fpr_at_tpr, SCORES, tpr=[0, 1.5, -0.1, NAN, "0.95", None]),
    *(case for call in OF_MEMBERS for case in wrong(call, {}, probs=BAD_MEMBERS)),
    *wrong(metrics.energy, {}, logits=[None, P[0], P.tolist(), P.astype(int), *NOTHING, MEMBERS[..., None]]),
    *wrong(metrics.max_probability, {}, probs=[np.full((2, 4, 3, 2), 0.5)]),  # of labels, which have no largest one
    *wrong(metrics.knn_distance, {"features": FEATURES, "reference": REFERENCE, "k": 2}, features=BAD_FEATURES),
    *wrong(metrics.knn_distance, {"features": FEATURES, "reference": REFERENCE}, k=[*COUNTS, 9]),
    *wrong(
        metrics.mahalanobis_distance,
        {"features": FEATURES, "reference": REFERENCE, "labels": np.arange(8) % 2},
        features=BAD_FEATURES,
        labels=[None, np.arange(7) % 2, np.zeros(8)],
    ),
]

GRID = np.linspace(0, 1, 5)
WEIGHTS = theory.trapezoid_weights(GRID)
KERNELS = theory.KernelMixture([0.25, 0.5, 0.75], theory.gaussian(0.2)).on_grid(GRID)
OBJECTIVE = {"density": KERNELS.mean(axis=0), "kernels": KERNELS, "weights": WEIGHTS, "size": 2}
F = theory.DivergenceObjective(**OBJECTIVE)
BAD_GRIDS = [
    None,
    3.0,
    [],
    [0.0],
    [1.0, 0.0],
    [0.0, 0.0, 1.0],
    [0.0, NAN],
    "grid",
    [[0.0, 1.0]],
    np.ma.masked_array(GRID, mask=GRID > 0),
]
BAD_INDICES = [None, [5], [-9], [0, 0], [0.5], "01"]
CASES += [
    *wrong(theory.trapezoid_weights, {}, grid=BAD_GRIDS),
    *wrong(theory.gaussian, {}, width=[0, -1, NAN, INF, "1", None]),
    *wrong(theory.laplace, {}, width=[0, -1, NAN, INF, "1", None]),
    *wrong(theory.generalised_exponential, {"strength": 1.0, "power": 2.0}, strength=[0, NAN, "1"], power=[0, "2"]),
    *wrong(theory.alpha, {}, {"a": "a|alpha"}, a=[NAN, INF, "1", None]),
    *wrong(
        theory.KernelMixture, {"centres": [0.0], "kernel": theory.gaussian(1.0)},
        centres=[None, [], 3.0, [NAN], ["a"], [[[0.0]]]], kernel=[None, "gaussian", theory.gaussian],
    ),
    *wrong(theory.KernelMixture([0.0], theory.gaussian(1.0)).kernels, {}, points=[None, [], [NAN], [[0.0]], ["a"]]),
    *wrong(theory.KernelMixture([0.0], theory.gaussian(1.0)).on_grid, {}, {"grid": "grid|centres"}, grid=BAD_GRIDS),
    *wrong(
        theory.DivergenceObjective, OBJECTIVE,
        density=[None, [], KERNELS, KERNELS[0] * 2, -KERNELS[0], KERNELS[0] * NAN, KERNELS[0][:3]],
        kernels=[None, [], KERNELS[0], -KERNELS, KERNELS * NAN, KERNELS[:, :3]],
        weights=[None, [], -WEIGHTS, WEIGHTS * NAN, [["a"]]],
        size=[*COUNTS, 4],
        generator=["kll", None, 3],
        offset=[NAN, INF, "0", None],
    ),
    *wrong(F, {}, indices=BAD_INDICES),
    *wrong(F.mixture, {}, indices=BAD_INDICES),
    *wrong(F.divergence, {}, indices=[None, [0], [0, 1, 2], [0, 9]]),
    *wrong(F.marginal_gain, {"indices": [0]}, {"candidate": "candidate|indices"}, candidate=[0, 9, 1.5, None]),
    *(
        case
        for call in (theory.exact_gains, theory.expected_gains, theory.point_gains)
        for case in wrong(call, {"objective": F, "indices": [0]}, objective=[None, 3, "F"], indices=[[9], [0, 0]])
    ),
    *(
        case
        for call in (theory.greedy, theory.lazy_greedy, theory.exhaustive)
        for case in wrong(call, {}, function=[None, 3, len])
    ),
    *(
        case
        for call in (theory.random_greedy, theory.stochastic_greedy)
        for case in wrong(call, {"function": F}, {"function": "function|rng"}, rng=[None, 0, np.random.RandomState(0)])
    ),
    *wrong(theory.stochastic_greedy, {"function": F, "rng": np.random.default_rng(0)}, epsilon=[0, 1.5, -1, NAN, "1"]),
    *wrong(
        theory.f_divergence, {"p": KERNELS[0], "q": KERNELS[1], "f": "kl", "weights": WEIGHTS},
        p=[None, -KERNELS[0], KERNELS[0][:2]], q=[None, -KERNELS[0], KERNELS[0][:2]],
        f=["kll", None, 3], weights=[-WEIGHTS, WEIGHTS[:2]],
    ),
    *wrong(theory.maximum_divergence, {"objective": F}, objective=[None, 3], most_sets=[-1, 1.5, None]),
    *wrong(theory.divergence_bound, {}, objective=[None, 3]),
    *wrong(
        ge.models.MLP, {"inputs": 2}, inputs=COUNTS, classes=COUNTS, hidden=[3, None, [0], ["4"], [1.5], "44"],
    ),
    *wrong(
        ge.models.PreResNet, {"depth": 8}, depth=[0, 9, 7.5, "8", None, True], classes=COUNTS, channels=COUNTS,
        block=["Basic", 3], blocks_per_stage=[0, -1, 1.5, "1"],
    ),
    *wrong(ge.models.VGG16BN, {}, classes=COUNTS, channels=COUNTS),
    *wrong(ge.models.WideResNet28x10, {}, classes=COUNTS, channels=COUNTS, published=["yes", None, 3]),
    *wrong(
        ge.models.named, {"name": "VGG16BN", "classes": 2, "channels": 3},
        name=["VGG", None, 3], classes=COUNTS, channels=COUNTS,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "arguments", "name"), CASES)
def test_the_argument_is_named(call, arguments, name):
    assert_refused(call, arguments, name)


def test_arrays_and_tensors_are_refused_alike():
    for bad in (P * 2, P * NAN):
        assert_refused(metrics.accuracy, {"probs": torch.from_numpy(bad), "labels": L}, "probs")
