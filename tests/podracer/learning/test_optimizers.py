"""Step sizes that fall, and steps."""

import jax.numpy as jnp
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
