import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc

from greedy_ensembles.metrics import roc_curve
from greedy_ensembles.report.thinning import COLUMNS, thin

unit = st.floats(0, 1)
curves = st.lists(st.tuples(unit, unit), min_size=1, max_size=200).map(lambda points: np.array(sorted(points)).T)


@given(curves, st.integers(1, 20))
def test_every_column_comes_in_goes_out_and_reaches_as_far(curve, columns):
    x, y = curve
    thinned_x, thinned_y = thin(x, y, columns)
    kept = set(zip(thinned_x, thinned_y, strict=True))
    assert kept <= set(zip(x, y, strict=True))
    assert (np.diff(thinned_x) >= 0).all()
    assert len(thinned_x) <= 4 * columns
    column, thinned_column = (np.minimum((values * columns).astype(int), columns - 1) for values in (x, thinned_x))
    for each in range(columns):
        before, after = y[column == each], thinned_y[thinned_column == each]
        assert len(before) == 0 or (before[0], before[-1]) == (after[0], after[-1])
        assert len(before) == 0 or (before.min(), before.max()) == (after.min(), after.max())


def test_points_stay_in_order():
    # Within a column down, up and down again: sorting by height would swap them.
    x, y = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), np.array([0.5, 0.1, 0.3, 0.9, 0.7, 0.6])
    assert thin(x, y, columns=1)[1].tolist() == [0.5, 0.1, 0.9, 0.6]


def test_a_curve_of_few_points_is_left_alone():
    x = np.repeat([0.0, 1.0], 2 * COLUMNS)  # all in two columns, and on two straight lines
    y = np.linspace(0, 1, 4 * COLUMNS)
    thinned_x, thinned_y = thin(x, y)
    assert thinned_x.tolist() == x.tolist()
    assert thinned_y.tolist() == y.tolist()


def test_a_curve_of_many_points_keeps_its_shape():
    rng = np.random.default_rng(0)
    false, true, _ = roc_curve(rng.gamma(1, 1, 100_000), rng.gamma(2, 1, 100_000))
    x, y = thin(false, true)
    assert len(false) > 190_000
    assert len(x) <= 4 * COLUMNS
    # Each point that was dropped is a tenth of a line's width from the picture that is left: in the box, a column wide,
    # of the neighbours that were kept.
    after = np.searchsorted(x, false).clip(1)
    dropped = ~np.isin(false, x)
    assert (x[after] - x[after - 1])[dropped].max() <= 1 / COLUMNS
    assert ((y[after - 1] <= true) & (true <= y[after]))[dropped].all()
    assert auc(x, y) == pytest.approx(auc(false, true), abs=1e-5)
