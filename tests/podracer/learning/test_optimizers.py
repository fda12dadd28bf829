"""Step sizes that fall, and steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podracer.learning import optimizers

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("update", "expected"),
    [(0, 4.8e-4), (1, 4.76928e-4), (10, 4.4928e-4), (156, 7.68e-7), (157, 0.0)],
)
def test_learning_rate_falls_linearly(update, expected):
    """Spec A5: TorchBeast's, 80 x 8 steps an update."""
    got = optimizers.decayed(4.8e-4, jnp.float32(update) * 80 * 8, 100_000)
    assert float(got) == pytest.approx(expected, abs=1e-9)


def test_learning_rate_falls_over_more_steps_than_32_bits_count():
    assert float(optimizers.decayed(1.0, jnp.float32(25 * 10**10), 10**12)) == 0.75


def test_learning_rate_stays_without_an_end():
    assert optimizers.decayed(4.8e-4, jnp.float32(5.0), None) == jnp.float32(4.8e-4)


def test_a_step_is_the_learning_rate_times_the_direction():
    params = {"a": jnp.array([1.0, 2.0])}
    optimizer = optax.trace(0.0)
    params, _ = optimizers.descend(
        optimizer, {"a": jnp.array([1.0, -1.0])}, optimizer.init(params), params, 0.5
    )
    assert params["a"].tolist() == [0.5, 2.5]


ADAM = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam())


def steps(params, opt_state):
    """Three steps with the gradient of the parameters' squares."""
    for _ in range(3):
        gradients = jax.tree.map(lambda x: 2 * x, params)
        params, opt_state = optimizers.descend(ADAM, gradients, opt_state, params, 0.1)
    return params, opt_state


@pytest.mark.parametrize(
    "params",
    [
        {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": {"b": jnp.ones(3)}},
        jnp.array([1.0, -2.0]),
        jnp.array(3.0),  # of the shape of Adam's counter
    ],
    ids=["layers", "array", "scalar"],
)
def test_vectors_take_the_same_steps_as_trees(params):
    state = params, ADAM.init(params)
    vectors = optimizers.as_vectors(*state)
    assert isinstance(vectors[0], optimizers.Vector)
    assert len(jax.tree.leaves(vectors)) == 4  # parameters, both moments, the counter
    expected, got = steps(*state), optimizers.as_trees(steps(*vectors))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-6), got, expected)
    assert jax.tree.structure(got) == jax.tree.structure(expected)


def test_only_small_networks_become_vectors():
    large = {"a": jnp.zeros(optimizers.SMALL - 1), "b": jnp.zeros(1)}
    state = large, ADAM.init(large)
    assert optimizers.as_vectors(*state) == state
    small = {"a": large["a"]}
    assert optimizers.as_vectors(small, ())[0].numbers.shape == (optimizers.SMALL - 1,)
