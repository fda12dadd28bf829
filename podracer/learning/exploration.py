"""Exploration of agents that choose the action of the largest value."""

from typing import Any

import jax
import jax.numpy as jnp


def explore(key: jax.Array, values: jax.Array, epsilon: jax.Array) -> jax.Array:
    """The action of the largest of the values [A], or any with probability epsilon.

    A value of -inf forbids its action.
    """
    chance, choice = jax.random.split(key)
    allowed = jnp.cumsum(values > -jnp.inf)  # up to each action
    anything = jnp.argmax(allowed > jax.random.randint(choice, (), 0, allowed[-1]))
    random = jax.random.uniform(chance) < epsilon
    return jnp.where(random, anything, jnp.argmax(values))


def epsilon_after(config: Any, steps: Any) -> jax.Array:
    """The probability of a random action after so many environment steps.

    It decays linearly over the first `exploration_share` of the run.

    Args:
      config: has `initial_epsilon`, `epsilon`, `exploration_share` and `total_steps`.
      steps: number of them, a number or float32 [].
    """
    duration = config.exploration_share * (config.total_steps or 0)
    share = jnp.minimum(steps / duration, 1.0) if duration else 1.0
    return jnp.float32(
        config.initial_epsilon + share * (config.epsilon - config.initial_epsilon)
    )
