import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import kl_div
from scipy.stats import norm

from greedy_ensembles import theory
from greedy_ensembles.theory import f_divergence
from greedy_ensembles.theory.divergence import as_generator

NAMES = list(theory.GENERATORS)
EXTENDED = [*theory.GENERATORS.values(), *map(theory.alpha, (-1.0, 0.0, 0.5, 1.0, 2.0))]


class TestTwoGaussians:
    """By quadrature, against closed forms for N(m1, s1^2) and N(m2, s2^2)."""

    grid = np.linspace(-14, 14, 4001)
    weights = theory.trapezoid_weights(grid)
    m1, s1, m2, s2 = 0.3, 0.9, -0.4, 1.1
    p, q = norm.pdf(grid, m1, s1), norm.pdf(grid, m2, s2)

    def check(self, f: object, expected: float) -> None:
        assert f_divergence(self.p, self.q, f, self.weights) == pytest.approx(expected, rel=1e-9)

    def test_kl(self) -> None:
        forward = math.log(self.s2 / self.s1) + (self.s1**2 + (self.m1 - self.m2) ** 2) / (2 * self.s2**2) - 0.5
        self.check("kl", forward)
        self.check(theory.alpha(1.0), forward)

    def test_reverse_kl(self) -> None:
        reverse = math.log(self.s1 / self.s2) + (self.s2**2 + (self.m1 - self.m2) ** 2) / (2 * self.s1**2) - 0.5
        self.check("reverse_kl", reverse)
        self.check(theory.alpha(0.0), reverse)

    def test_squared_hellinger(self) -> None:
        total = self.s1**2 + self.s2**2
        overlap = math.sqrt(2 * self.s1 * self.s2 / total) * math.exp(-((self.m1 - self.m2) ** 2) / (4 * total))
        self.check("squared_hellinger", 1 - overlap)

    def moment(self, power: float) -> float:
        """Return the integral of p^a q^(1-a)."""
        variance = 1 / (power / self.s1**2 + (1 - power) / self.s2**2)
        mean = variance * (power * self.m1 / self.s1**2 + (1 - power) * self.m2 / self.s2**2)
        exponent = power * self.m1**2 / self.s1**2 + (1 - power) * self.m2**2 / self.s2**2 - mean**2 / variance
        scale = math.sqrt(variance) / (self.s1**power * self.s2 ** (1 - power))
        return scale * math.exp(-exponent / 2)

    def test_chi_squared(self) -> None:
        self.check("pearson_chi2", self.moment(2) - 1)
        self.check("neyman_chi2", self.moment(-1) - 1)

    @pytest.mark.parametrize("a", [-0.5, 0.3, 0.5, 1.6])
    def test_alpha(self, a: float) -> None:
        self.check(theory.alpha(a), (self.moment(a) - 1) / (a * (a - 1)))

    def test_total_variation_of_equal_widths(self) -> None:
        q = norm.pdf(self.grid, self.m2, self.s1)
        expected = 2 * norm.cdf(abs(self.m1 - self.m2) / (2 * self.s1)) - 1
        assert f_divergence(self.p, q, "total_variation", self.weights) == pytest.approx(expected, rel=1e-5)

    def test_jensen_shannon_is_two_kls_to_the_middle(self) -> None:
        middle = (self.p + self.q) / 2
        sides = [f_divergence(side, middle, "kl", self.weights) for side in (self.p, self.q)]
        self.check("jensen_shannon", sum(sides) / 2)


def test_of_measures_that_integrate_to_something_else() -> None:
    """SciPy's elementwise form is that of alpha -> 1."""
    p, q = np.random.default_rng(0).dirichlet(np.full(9, 0.5), 2)
    assert f_divergence(3 * p, 2 * q, theory.alpha(1.0)) == pytest.approx(kl_div(3 * p, 2 * q).sum())


@pytest.mark.parametrize("f", EXTENDED, ids=lambda f: f.name)
class TestWhereADensityVanishes:
    def test_disjoint_supports(self, f: theory.Generator) -> None:
        assert f_divergence([1.0, 0.0], [0.0, 1.0], f) == pytest.approx(f.limit_at_zero + f.slope_at_infinity)

    def test_p_vanishes(self, f: theory.Generator) -> None:
        expected = 0.5 * f(2.0) + 0.5 * f.limit_at_zero
        assert f_divergence([1.0, 0.0], [0.5, 0.5], f) == pytest.approx(expected)

    def test_q_vanishes(self, f: theory.Generator) -> None:
        expected = f(0.5) + (0.5 * f.slope_at_infinity)
        assert f_divergence([0.5, 0.5], [1.0, 0.0], f) == pytest.approx(expected)

    def test_both_vanish(self, f: theory.Generator) -> None:
        full = f_divergence([0.4, 0.6], [0.3, 0.7], f)
        assert f_divergence([0.4, 0.0, 0.6], [0.3, 0.0, 0.7], f) == pytest.approx(full)

    def test_points_of_no_weight_do_not_count(self, f: theory.Generator) -> None:
        full = f_divergence([0.4, 0.6], [0.3, 0.7], f)
        assert f_divergence([0.4, 9.0, 0.6, 0.0], [0.3, 0.0, 0.7, 9.0], f, [1, 0, 1, 0]) == pytest.approx(full)

    def test_the_smallest_numbers_are_no_zeros(self, f: theory.Generator) -> None:
        for p, q in (([1.0, 5e-324], [1.0, 0.5]), ([1.0, 0.5], [1.0, 5e-324])):
            value = f_divergence(p, q, f)
            assert not math.isnan(value)
            if math.isfinite(f.limit_at_zero) and math.isfinite(f.slope_at_infinity):
                assert math.isfinite(value)

    @given(st.lists(st.tuples(*[st.sampled_from([0.0, 5e-324, 1e-200, 0.3, 2.0])] * 3), min_size=1, max_size=6))
    def test_never_nan(self, f: theory.Generator, points: list[tuple[float, float, float]]) -> None:
        p, q, weights = map(list, zip(*points, strict=True))
        assert not math.isnan(f_divergence(p, q, f, weights))


def test_kl_of_a_subnormal_mixture_is_finite() -> None:
    assert f_divergence([1.0], [5e-324], "kl") == pytest.approx(744.44, abs=0.01)  # p / q would have overflowed


@given(st.integers(0, 2**32), st.sampled_from(NAMES))
def test_it_is_a_divergence(seed: int, name: str) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.ones(5), 2)
    assert f_divergence(p, q, name) > 0
    assert f_divergence(p, p, name) == pytest.approx(0, abs=1e-12)


def test_a_plain_callable_where_it_stays_finite() -> None:
    def pearson(x: np.ndarray) -> np.ndarray:
        return (x - 1) ** 2

    assert f_divergence([0.5, 0.5], [0.2, 0.8], pearson) == pytest.approx(
        f_divergence([0.5, 0.5], [0.2, 0.8], "pearson_chi2")
    )
    assert f_divergence([1.0, 0.0], [0.2, 0.8], pearson) == pytest.approx(0.2 * 16 + 0.8)
    with pytest.raises(ValueError, match=r"generator pearson .* slope_at_infinity .*theory\.Generator"):
        f_divergence([0.5, 0.5], [1.0, 0.0], pearson)
    with pytest.raises(ValueError, match="limit_at_zero"):
        f_divergence([1.0, 0.0], [0.5, 0.5], lambda x: -np.log(x))


@pytest.mark.parametrize(
    ("p", "q", "weights", "message"),
    [
        ([0.5, -0.5], [0.5, 0.5], None, "p must not be negative, got -0.5"),
        ([0.5, 0.5], [0.5, math.nan], None, "q must be finite, got NaN"),
        ([0.5, math.inf], [0.5, 0.5], None, "p must be finite, got infinity"),
        ([], [], None, "p must have 1 dimension"),
        ([[0.5, 0.5]], [0.5, 0.5], None, "p must have 1 dimension"),
    ],
)
def test_bad_input(p: object, q: object, weights: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        f_divergence(p, q, "kl", weights)


ALL = [*theory.GENERATORS.values(), *map(theory.alpha, (-1.5, -1.0, 0.0, 0.3, 0.5, 1.0, 1.7, 2.0, 3.0))]
generators = pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)


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


def test_bad_arguments_of_generators_are_refused() -> None:
    with pytest.raises(ValueError, match="x must not be negative or NaN"):
        theory.GENERATORS["kl"](-0.1)
    with pytest.raises(ValueError, match="x must not be negative or NaN"):
        theory.GENERATORS["kl"]([1.0, math.nan])
