"""Gradients by parts are gradients of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import gradients
from podracer.parallel import AVERAGE

pytestmark = pytest.mark.core


def loss(params, rows, memory):
    value = jnp.square(rows @ params + memory[None])
    return value.sum(), {"loss/total": value.sum(), "first": rows[..., 0].sum()}


@pytest.mark.parametrize(
    "shape", [(3, 8, 4), (300, 6, 4), (1, 1000, 4), (7, 1, 4), (255, 7, 4)]
)
def test_parts_add_up(shape, monkeypatch):
    calls = []
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *x: calls.append(x[2].size) or scan(*x))
    rows = jax.random.normal(jax.random.key(0), shape)
    params, memory = jnp.arange(4.0), jnp.arange(float(shape[1]))
    got, sums = gradients.gradient_of_sum(loss, params, rows, memory)
    expected, whole = jax.grad(loss, has_aux=True)(params, rows, memory)
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    for name in whole:
        np.testing.assert_allclose(sums[name], whole[name], rtol=1e-4, atol=1e-3)
    # no part is larger than it must be
    sequences = shape[1] // calls[0]
    assert sequences == 1 or sequences * shape[0] <= gradients.SAMPLES


def test_means_are_sums_over_the_count():
    rows, params, memory = jnp.ones((2, 3, 4)), jnp.arange(4.0), jnp.zeros(3)
    gradient, metrics = gradients.mean_gradient(loss, params, rows, memory, 6, AVERAGE)
    np.testing.assert_allclose(gradient, jnp.full(4, 12.0))
    assert metrics["loss/total"] == 36 and metrics["first"] == 1
    assert metrics["gradient_norm"] == 24
