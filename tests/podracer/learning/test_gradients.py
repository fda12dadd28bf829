"""Gradients of means and sums over sequences, which may count several times or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.learning import gradients, losses
from podracer.parallel import AVERAGE

pytestmark = pytest.mark.core


def loss(params, rows, memory):
    value = jnp.square(rows @ params + memory[None])
    first = rows[..., 0]
    return losses.Terms(value, {"first": first}, jnp.ones_like(first), {"all": value})


def test_means_are_sums_over_the_count():
    rows, params, memory = jnp.ones((3, 2, 4)), jnp.arange(4.0), jnp.zeros(3)
    gradient, metrics = gradients.mean_gradient(loss, params, rows, memory, 6, AVERAGE)
    np.testing.assert_allclose(gradient, jnp.full(4, 12.0))
    assert metrics["loss/total"] == metrics["all"] == 36 and metrics["first"] == 1
    assert metrics["gradient_norm"] == 24


def test_a_weight_is_how_often_a_sequence_counts():
    params, memory = jnp.arange(4.0), jnp.arange(3.0)
    rows = jax.random.normal(jax.random.key(0), (3, 2, 4))
    weight, often = jnp.array([2.0, 0.0, 1.0]), jnp.array([0, 0, 2])
    weighted = gradients.gradient_of_sum(loss, params, rows, memory, weight)
    repeated = gradients.gradient_of_sum(loss, params, rows[often], memory[often])
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), weighted, repeated
    )


def test_sequences_come_first():
    rows = {"x": jnp.arange(6).reshape(2, 3)}
    assert gradients.sequences(rows)["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
