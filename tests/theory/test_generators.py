import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles import theory
from greedy_ensembles.theory.generators import as_generator

ALL = [*theory.GENERATORS.values(), *map(theory.alpha, (-1.5, -1.0, 0.0, 0.3, 0.5, 1.0, 1.7, 2.0, 3.0))]
generators = pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)


def test_the_promised_names() -> None:
    assert set(theory.GENERATORS) == {
        "kl",
        "reverse_kl",
        "jensen_shannon",
        "squared_hellinger",
        "pearson_chi2",
        "neyman_chi2",
        "total_variation",
    }
    assert all(name == f.name for name, f in theory.GENERATORS.items())


@generators
def test_it_vanishes_at_one(f: theory.Generator) -> None:
    assert f(1.0) == pytest.approx(0, abs=1e-15)


@generators
@given(st.floats(0.0, 50.0), st.floats(0.0, 50.0), st.floats(0.0, 1.0))
def test_it_is_convex(f: theory.Generator, x: float, y: float, share: float) -> None:
    chord = share * f(x) + (1 - share) * f(y) if 0 < share < 1 else math.inf
    assert f(share * x + (1 - share) * y) <= chord + 1e-9 * (1 + abs(chord) if math.isfinite(chord) else 1)


@generators
def test_its_limit_at_zero_is_one(f: theory.Generator) -> None:
    nearly = f(np.logspace(-300, -3, 100))
    if math.isinf(f.limit_at_zero):
        assert nearly[0] > 500
    else:
        assert nearly[0] == pytest.approx(f.limit_at_zero, abs=1e-6)
    assert f(0.0) == f.limit_at_zero


@generators
def test_its_slope_at_infinity_is_one(f: theory.Generator) -> None:
    x = np.array([1e3, 1e15, 1e100])
    slopes = f(x) / x
    if math.isinf(f.slope_at_infinity):
        assert slopes[2] > 2 * slopes[0]
    else:
        assert slopes[2] == pytest.approx(f.slope_at_infinity, abs=1e-6)


@generators
def test_at_infinity_it_is_infinite_unless_its_slope_vanishes(f: theory.Generator) -> None:
    assert f(math.inf) == (-math.inf if f.slope_at_infinity == 0 else math.inf)


@generators
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_perspective_is_q_f_of_the_ratio(f: theory.Generator, p: float, q: float) -> None:
    assert f.perspective(np.array(p), np.array(q)) == pytest.approx(q * f(p / q), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("a", "name", "factor", "slope"),
    [
        (2.0, "pearson_chi2", 0.5, 0),
        (-1.0, "neyman_chi2", 0.5, 0),
        (0.5, "squared_hellinger", 4.0, 0),
        (1.0, "kl", 1.0, -1),
        (0.0, "reverse_kl", 1.0, 1),
    ],
)
def test_the_alpha_family_holds_the_named_ones(a: float, name: str, factor: float, slope: float) -> None:
    x = np.linspace(0.05, 9, 50)
    expected = factor * theory.GENERATORS[name](x) + slope * (x - 1)  # the straight line changes no divergence
    np.testing.assert_allclose(theory.alpha(a)(x), expected, atol=1e-12)


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_the_alpha_family_is_continuous_in_its_limits(limit: float) -> None:
    x = np.linspace(0.05, 9, 50)
    for near in (1e-5, 1e-9, 1e-14):  # without digits lost on the way
        np.testing.assert_allclose(theory.alpha(limit + near)(x), theory.alpha(limit)(x), atol=100 * near + 1e-14)


def test_a_plain_callable_becomes_one() -> None:
    f = as_generator(lambda x: (x - 1) ** 2)
    assert f(3.0) == 4.0
    assert f.limit_at_zero == 1.0
    assert math.isnan(f.slope_at_infinity)
    assert math.isnan(as_generator(lambda x: -np.log(x)).limit_at_zero)


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        ("hellinger", ValueError, "f must be one of .* did you mean 'squared_hellinger'"),
        (3, TypeError, "f must be a generator, the name of one, or a callable"),
        (lambda x: x, ValueError, r"f must be convex with f\(1\) = 0, got f\(1\) = 1"),
        (lambda x: 0.0, ValueError, "f must take an array and return one of the same shape"),
    ],
)
def test_what_is_no_generator_is_refused(f: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_generator(f)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="a must be finite"):
        theory.alpha(math.inf)
    with pytest.raises(ValueError, match="x must not be negative or NaN"):
        theory.GENERATORS["kl"](-0.1)
    with pytest.raises(ValueError, match="x must not be negative or NaN"):
        theory.GENERATORS["kl"]([1.0, math.nan])
