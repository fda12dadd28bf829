"""What a step of the optimizer sees, in which order."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podracer import kernels
from podracer.learning import losses, minibatches
from podracer.parallel import Average


def test_each_epoch_has_an_order_of_its_own():
    size, key = 6, jax.random.key(0)
    config = minibatches.Config(epochs=3, minibatches=size)

    def step(state, rows, memory):
        params, (seen, count) = state
        seen = seen.at[count].set(rows[0, 0])
        return (params, (seen, count + 1)), {"count": jnp.float32(count)}

    state = {"a": jnp.zeros(())}, (jnp.zeros(3 * size, jnp.int32), 0)
    batch = jnp.arange(size)[None]
    (_, (seen, _)), metrics = minibatches.learn(step, state, batch, (), key, config)
    assert metrics["count"] == np.arange(2 * size, 3 * size).mean()  # of the last epoch
    keys = [jax.random.fold_in(key, epoch) for epoch in range(3)]
    expected = [kernels.permutation(key, size).tolist() for key in keys]
    assert seen.reshape(3, size).tolist() == expected
    assert len({*map(tuple, expected)}) == 3


class Rows(NamedTuple):
    x: jax.Array
    mask: jax.Array


@pytest.mark.parametrize("memory", [(), jnp.zeros((3, 2))], ids=["none", "memory"])
def test_a_loss_gets_unrolls_only_where_a_memory_connects_their_steps(memory):
    lengths = []

    def loss(scale, rows, memory):
        lengths.append(rows.x.shape[0])
        error = rows.mask * jnp.square(scale * rows.x - 1.0)
        return losses.Terms(error, {"error": error}, rows.mask)

    rows = Rows(jnp.arange(12.0).reshape(3, 4), jnp.ones((3, 4)).at[1, 2].set(0.0))
    step = minibatches.gradient_step(loss, optax.identity(), 0.1, Average(None))
    (scale, _), metrics = step((jnp.float32(0.5), optax.EmptyState()), rows, memory)
    assert set(lengths) == {4 if isinstance(memory, jax.Array) else 1}
    kept = np.delete(np.arange(12.0), 6)
    gradient = np.sum(2.0 * (0.5 * kept - 1.0) * kept) / 12
    np.testing.assert_allclose(scale, 0.5 - 0.1 * gradient, rtol=1e-6)
    error = np.square(0.5 * kept - 1.0).sum() / 12
    np.testing.assert_allclose(metrics["error"], error, rtol=1e-6)
