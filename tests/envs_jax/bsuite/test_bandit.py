"""Bandit: rewards, instances, noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import Bandit, check
from tests.envs_jax.unrolling import play


def test_bandit_pays_for_its_arms():
    environment = Bandit()
    check(environment, steps=10, deterministic=True)
    step = jax.vmap(environment.step, (None, None, 0))
    state, _ = environment.initial_state(jax.random.key(0))
    _, timestep = step(jax.random.key(0), state, jnp.arange(11))
    assert timestep.last().all() and not timestep.discount.any()
    np.testing.assert_array_equal(timestep.reward, environment.rewards())
    np.testing.assert_allclose(np.sort(timestep.reward), np.arange(11) / 10, atol=1e-6)


def test_bandits_differ_by_instance_even_under_vmap():
    orders = jax.vmap(lambda instance: Bandit(instance=instance).rewards())
    orders = orders(jnp.arange(20))
    np.testing.assert_array_equal(orders[3], Bandit(instance=3).rewards())
    assert len({int(order.argmax()) for order in orders}) > 5


def test_bandit_noise_has_its_size():
    timesteps = play(Bandit(noise=2.0), lambda key, timestep: 0, 1, copies=4_096)
    rewards = timesteps.reward[:, 1]
    assert abs(rewards.mean() - Bandit().rewards()[0]) < 0.13  # 4 standard errors
    assert abs(rewards.std() - 2) < 0.1


def test_bandit_follows_the_protocol():
    check(Bandit(noise=0.1))


def test_bandit_needs_two_arms():
    with pytest.raises(ValueError, match="arms is 1; .* at least 2"):
        Bandit(arms=1)
