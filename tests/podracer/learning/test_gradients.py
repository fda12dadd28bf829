"""Gradients by parts are gradients of the whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.learning import gradients
from podracer.parallel import AVERAGE

pytestmark = pytest.mark.core


def loss(params, rows, memory):
    value = jnp.square(rows @ params + memory[None])
    return value.sum(), {"loss/total": value.sum(), "first": rows[..., 0].sum()}


@pytest.mark.parametrize(
    "shape", [(8, 3, 4), (6, 300, 4), (1000, 1, 4), (1, 7, 4), (7, 255, 4)]
)
def test_parts_add_up(shape, monkeypatch):
    calls = []
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *x: calls.append(x[2].size) or scan(*x))
    rows = jax.random.normal(jax.random.key(0), shape)
    params, memory = jnp.arange(4.0), jnp.arange(float(shape[0]))
    got, sums = gradients.gradient_of_sum(loss, params, rows, memory)
    by_time = jnp.swapaxes(rows, 0, 1)
    expected, whole = jax.grad(loss, has_aux=True)(params, by_time, memory)
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    for name in whole:
        np.testing.assert_allclose(sums[name], whole[name], rtol=1e-4, atol=1e-3)
    # no part is larger than it must be
    sequences = shape[0] // calls[0]
    assert sequences == 1 or sequences * shape[1] <= gradients.SAMPLES


def test_means_are_sums_over_the_count():
    rows, params, memory = jnp.ones((3, 2, 4)), jnp.arange(4.0), jnp.zeros(3)
    gradient, metrics = gradients.mean_gradient(loss, params, rows, memory, 6, AVERAGE)
    np.testing.assert_allclose(gradient, jnp.full(4, 12.0))
    assert metrics["loss/total"] == 36 and metrics["first"] == 1
    assert metrics["gradient_norm"] == 24


def test_a_loss_is_traced_once_for_a_part_and_once_for_the_whole():
    traced = []

    def counted(params, rows, memory):
        traced.append(rows.shape)
        return loss(params, rows, memory)

    rows, memory = jnp.ones((6, 300, 4)), jnp.zeros(6)
    jax.jit(partial(gradients.gradient_of_sum, counted)).lower(
        jnp.ones(4), rows, memory
    )
    assert sorted(traced) == [(300, 1, 4), (300, 6, 4)]
