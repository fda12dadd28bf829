"""Every order of transitions is as likely, by the statistics that a learner could notice."""

import jax
import numpy as np
import pytest

from podracer import kernels

SIZE, PARTS, KEYS = 5_000, 4, 400


@pytest.fixture(scope="module")
def orders():
    """[KEYS, SIZE]"""
    keys = jax.random.split(jax.random.key(0), KEYS)
    return np.asarray(jax.lax.map(lambda key: kernels.permutation(key, SIZE), keys))


@pytest.mark.parametrize("size", [2, 4_095, 4_096, 4_097, 8_191, 8_192, 8_193, 40_000])
def test_each_number_comes_once(size):
    order = jax.jit(kernels.permutation, static_argnums=1)(jax.random.key(0), size)
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_keys_give_orders_of_their_own(orders):
    same = (orders[1:] == orders[:-1]).mean()
    assert same < 10 / SIZE  # 1 / SIZE by chance


def test_every_number_comes_at_every_place_as_often(orders):
    places, numbers = np.arange(SIZE) * 20 // SIZE, orders * 20 // SIZE
    counts = np.zeros((20, 20))
    np.add.at(counts, (np.broadcast_to(places, numbers.shape), numbers), 1)
    check_even(counts)


def test_differences_of_neighbours_are_as_often(orders):
    differences = np.diff(orders) % SIZE
    check_even(np.bincount(differences.ravel(), minlength=SIZE)[1:])


@pytest.mark.parametrize("distance", [1, 2, 64, 1_024, 2_500])
def test_pairs_meet_in_a_minibatch_as_often(orders, distance):
    part = np.argsort(orders) * PARTS // SIZE
    met = (part[:, distance:] == part[:, :-distance]).mean(1)
    expected = (SIZE / PARTS - 1) / (SIZE - 1)
    assert abs(met.mean() - expected) < 4 * met.std() / np.sqrt(KEYS)
    assert 0.004 < met.std() < 0.012  # 0.005 to 0.009 for orders by sorting


def check_even(counts):
    """Chi-squared over its degrees of freedom is close to 1."""
    expected = counts.mean()
    ratio = ((counts - expected) ** 2 / expected).sum() / (counts.size - 1)
    assert abs(ratio - 1) < 5 * np.sqrt(2 / counts.size)
