"""Scalars as distributions: MuZero's transform and its bins."""

import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks import value_support

pytestmark = pytest.mark.core


@pytest.mark.parametrize("x, expected", [(3.7, 1.171648), (250.0, 15.092980)])
def test_the_transform_has_the_published_values(x, expected):
    for sign in (1.0, -1.0):
        got = value_support.transform(jnp.float32(sign * x))
        assert float(got) == pytest.approx(sign * expected, abs=1e-5)


@pytest.mark.parametrize("y, expected", [(10, 117.43), (20, 422.44), (300, 58705.6)])
def test_the_inverse_has_the_published_values(y, expected):
    for sign in (1.0, -1.0):
        got = value_support.inverse(jnp.float32(sign * y))
        assert float(got) == pytest.approx(sign * expected, rel=1e-5)


def test_a_round_trip_is_exact_to_single_precision():
    x = np.concatenate([np.linspace(-5, 5, 101), np.geomspace(5, 5e4, 50)])
    y = value_support.transform(jnp.float32(x))
    np.testing.assert_allclose(value_support.inverse(y), x, rtol=1e-6, atol=2e-6)


def test_bins_follow_the_largest_return():
    returns = 1.0, 117.4, 500.0, 7_000.0, 58_705.0, 1e6
    made = [value_support.make_support(x) for x in returns]
    assert [(x.limit, x.bins) for x in made] == [
        (1, 21),  # the fewest
        (10, 81),
        (22, 177),
        (90, 601),  # not 721
        (300, 601),  # the paper's
        (2000, 4001),
    ]


@pytest.mark.parametrize("max_return", [1.0, 500.0])
def test_a_scalar_is_on_the_two_bins_around_it(max_return):
    support = value_support.make_support(max_return)
    x = jnp.linspace(-max_return, max_return, 73)
    p = support.distribution(x)
    assert p.shape == (73, support.bins)
    np.testing.assert_allclose(p.sum(-1), 1.0, atol=1e-5)
    assert int((p > 1e-6).sum(-1).max()) <= 2
    logits = jnp.log(jnp.maximum(p, 1e-30))
    np.testing.assert_allclose(support.mean(logits), x, rtol=2e-4, atol=2e-5)
    # What is exactly at a bin is on no other.
    points = value_support.inverse(support.points())
    np.testing.assert_allclose(
        support.distribution(points), np.eye(support.bins), atol=2e-5
    )


def test_beyond_the_ends_is_the_end():
    support = value_support.make_support(1.0)
    np.testing.assert_array_equal(support.distribution(jnp.float32([9.0]))[0, -1], 1.0)


def test_cross_entropy_is_least_at_the_distribution():
    support = value_support.make_support(10.0)
    x = jnp.float32([3.3])
    at = jnp.log(support.distribution(x) + 1e-9)
    best = support.cross_entropy(at, x)
    for delta in (-0.5, 0.5):
        other = jnp.log(support.distribution(x + delta) + 1e-9)
        assert float(support.cross_entropy(other, x)[0]) > float(best[0])
