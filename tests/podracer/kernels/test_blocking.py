"""Gradients in blocks are gradients of the whole, and rows one by one are an unroll."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import kernels, networks
from podracer.kernels import blocking
from tests.jitted import drawn

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
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    params, memory = np.arange(4, dtype=np.float32), ()
    if recurrent:
        memory = jnp.arange(float(shape[0]))
    got, sums = kernels.grad_of_sum(loss)(params, rows, memory)
    by_time = np.swapaxes(rows, 0, 1)
    expected, whole = jax.grad(loss, has_aux=True)(params, by_time, memory)
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    for name in whole:
        np.testing.assert_allclose(sums[name], whole[name], rtol=1e-4, atol=1e-3)
    # no part is larger than it must be
    sequences = shape[0] // calls[0]
    least = blocking.WIDE if recurrent else 1
    assert sequences <= least or sequences * shape[1] <= blocking.SAMPLES


FRAME = 4 * 84 * 84  # bytes of an observation


@pytest.mark.parametrize(
    ("length", "sequence", "batch_size", "recurrent", "expected"),
    [
        (21, 21 * FRAME, 64, False, 2),  # the largest divisor that the cache holds
        (21, 21 * FRAME, 64, True, blocking.WIDE),
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
    assert (
        blocking.sequences_at_once(length, sequence, batch_size, recurrent) == expected
    )


def network(memory="none"):
    config = networks.Config(hidden_sizes=(8,), memory=memory, memory_size=4)
    spec = specs.Array((3,), np.float32)
    return networks.actor_critic(spec, specs.DiscreteArray(2), config)


def unroll_of(network, length, batch_size):
    """(params, memory, timesteps [T, B, ...]), with an end after two rows."""
    step_type = np.full((length, batch_size), dm_env.StepType.MID, np.int32)
    step_type[2:3], step_type[3:4] = dm_env.StepType.LAST, dm_env.StepType.FIRST
    ones = np.ones(step_type.shape, np.float32)
    observation = np.random.default_rng(1).normal(size=(*step_type.shape, 3))
    memory = jax.tree.map(lambda x: x + 0.5, network.initial_memory(batch_size))
    timesteps = dm_env.TimeStep(step_type, ones, ones, np.float32(observation))
    return drawn(network.init), memory, timesteps


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("cache", [blocking.CACHE, 2 * 3 * 4], ids=["rows", "blocks"])
def test_wide_rows_one_by_one_are_all_at_once(memory, cache, monkeypatch):
    monkeypatch.setattr(blocking, "CACHE", cache)  # or two observations
    monkeypatch.setattr(blocking, "SAMPLES", 1)
    arguments = unroll_of(network(memory), 4, 12)

    def gradient(params, *rest):
        def loss(params):
            return network(memory).unroll(params, *rest).value.sum()

        return jax.value_and_grad(loss)(params)

    with kernels.without("blocking"):
        expected = jax.jit(lambda *x: gradient(*x))(*arguments)
    by_blocks, calls = blocking.by_blocks, []
    monkeypatch.setattr(
        blocking, "by_blocks", lambda *x: calls.append(1) or by_blocks(*x)
    )
    results = jax.jit(lambda *x: gradient(*x))(*arguments)
    assert calls
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        results,
        expected,
    )
