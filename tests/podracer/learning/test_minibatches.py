"""The random order of transitions, and what a step of the optimizer sees."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podracer.learning import minibatches
from podracer.parallel import Average

SIZE, PARTS, KEYS = 5_000, 4, 400


@pytest.fixture(scope="module")
def orders():
    """[KEYS, SIZE]"""
    keys = jax.random.split(jax.random.key(0), KEYS)
    return np.asarray(jax.lax.map(lambda key: minibatches.permutation(key, SIZE), keys))


@pytest.mark.parametrize("size", [2, 4_095, 4_096, 4_097, 8_191, 8_192, 8_193, 40_000])
def test_each_number_comes_once(size):
    order = minibatches.permutation(jax.random.key(0), size)
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


def test_each_epoch_has_an_order_of_its_own():
    size, key = 6, jax.random.key(0)
    config = minibatches.Config(epochs=3, minibatches=size)

    def step(state, rows, memory):
        params, (seen, count) = state
        seen = seen.at[count].set(rows[0, 0])
        return (params, (seen, count + 1)), {"unused": jnp.zeros(())}

    state = {"a": jnp.zeros(())}, (jnp.zeros(3 * size, jnp.int32), 0)
    batch = jnp.arange(size)[None]
    (_, (seen, _)), _ = minibatches.learn(step, state, batch, (), key, config)
    keys = [jax.random.fold_in(key, epoch) for epoch in range(3)]
    expected = [minibatches.permutation(key, size).tolist() for key in keys]
    assert seen.reshape(3, size).tolist() == expected
    assert len({*map(tuple, expected)}) == 3


def test_a_step_sees_vectors_and_its_caller_trees():
    config = minibatches.Config(epochs=2, minibatches=2)
    params, traced = {"a": jnp.zeros(2), "b": jnp.zeros(())}, []

    def step(state, rows, memory):
        traced.append(rows.shape)
        (vector, count), metrics = state, {"seen": jnp.sum(rows)}
        return (
            dataclasses.replace(vector, numbers=vector.numbers + 1),
            count + 1,
        ), metrics

    (got, count), metrics = minibatches.learn(
        step, (params, jnp.int32(0)), jnp.ones((3, 4)), (), jax.random.key(0), config
    )
    assert jax.tree.map(np.ndarray.tolist, jax.device_get(got)) == {
        "a": [4.0, 4.0],
        "b": 4.0,
    }
    assert (int(count), float(metrics["seen"]), float(metrics["epochs"])) == (
        4,
        6.0,
        2.0,
    )
    assert traced == [(2, 3)]  # once: tracing a step takes seconds


class Rows(NamedTuple):
    x: jax.Array
    mask: jax.Array


@pytest.mark.parametrize("memory", [(), jnp.zeros((3, 2))], ids=["none", "memory"])
def test_a_loss_gets_unrolls_only_where_a_memory_connects_their_steps(memory):
    lengths = []

    def loss(scale, rows, memory):
        lengths.append(rows.x.shape[0])
        error = jnp.sum(rows.mask * jnp.square(scale * rows.x - 1.0))
        return error, {"error": error}

    rows = Rows(jnp.arange(12.0).reshape(3, 4), jnp.ones((3, 4)).at[1, 2].set(0.0))
    step = minibatches.gradient_step(loss, optax.identity(), 0.1, Average(None))
    (scale, _), metrics = step((jnp.float32(0.5), optax.EmptyState()), rows, memory)
    assert set(lengths) == {4 if isinstance(memory, jax.Array) else 1}
    kept = np.delete(np.arange(12.0), 6)
    gradient = np.sum(2.0 * (0.5 * kept - 1.0) * kept) / 12
    np.testing.assert_allclose(scale, 0.5 - 0.1 * gradient, rtol=1e-6)
    error = np.square(0.5 * kept - 1.0).sum() / 12
    np.testing.assert_allclose(metrics["error"], error, rtol=1e-6)
