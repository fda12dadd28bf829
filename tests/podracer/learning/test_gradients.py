"""Gradients by parts are gradients of the whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.learning import gradients
from podracer.networks import building, sequences_at_once
from podracer.parallel import AVERAGE

pytestmark = pytest.mark.core


def loss(params, rows, memory):
    value = rows @ params
    if isinstance(memory, jax.Array):
        value += memory[None]
    value = jnp.square(value)
    return value.sum(), {"loss/total": value.sum(), "first": rows[..., 0].sum()}


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(
    "shape", [(8, 3, 4), (6, 300, 4), (1000, 1, 4), (1, 7, 4), (7, 255, 4), (16, 99, 4)]
)
def test_parts_add_up(shape, recurrent, monkeypatch):
    calls = []
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *x: calls.append(x[2].size) or scan(*x))
    rows = jax.random.normal(jax.random.key(0), shape)
    params, memory = jnp.arange(4.0), ()
    if recurrent:
        memory = jnp.arange(float(shape[0]))
    got, sums = gradients.gradient_of_sum(loss, params, rows, memory)
    by_time = jnp.swapaxes(rows, 0, 1)
    expected, whole = jax.grad(loss, has_aux=True)(params, by_time, memory)
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    for name in whole:
        np.testing.assert_allclose(sums[name], whole[name], rtol=1e-4, atol=1e-3)
    # no part is larger than it must be
    sequences = shape[0] // calls[0]
    least = building.WIDE if recurrent else 1
    assert sequences <= least or sequences * shape[1] <= building.SAMPLES


FRAME = 4 * 84 * 84  # bytes of an observation


@pytest.mark.parametrize(
    ("length", "sequence", "batch_size", "recurrent", "expected"),
    [
        (21, 21 * FRAME, 64, False, 2),  # the largest divisor that the cache holds
        (21, 21 * FRAME, 64, True, building.WIDE),
        (81, 81 * FRAME, 8, False, 1),  # at once, although larger than the cache
        (1024, 1024 * 16, 64, False, 1),
        (1024, 1024 * 16, 64, True, 64),  # eight are too long: row by row
        (1024, 1024 * 16, 4, True, 4),
        (601, 601 * FRAME, 16, False, 16),  # so is one: row by row
        (5000, 5000 * 16, 16, False, 16),
        (1, 16, 1000, False, 500),
        (1, FRAME, 2 * 127, False, 127),  # rather than 2
        (20, 20 * 16, 37, False, 1),  # 37 would go row by row
        (1, FRAME, 2 * 1021, False, 2),  # 1,021 do not keep their activations
        (1, 16, 6 * 101, False, 303),  # large enough, although 606 would fit
    ],
)
def test_sequences_that_are_learned_from_at_once(
    length, sequence, batch_size, recurrent, expected
):
    assert sequences_at_once(length, sequence, batch_size, recurrent) == expected


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

    rows = jnp.ones((6, 300, 4))
    jax.jit(partial(gradients.gradient_of_sum, counted)).lower(jnp.ones(4), rows, ())
    assert sorted(traced) == [(300, 1, 4), (300, 6, 4)]
