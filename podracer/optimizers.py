"""Steps down a gradient, the same for every agent."""

import jax
import jax.numpy as jnp
import optax

from podracer.agent import PyTree


def descend(
    optimizer: optax.GradientTransformation,
    gradients: PyTree,
    opt_state: optax.OptState,
    params: PyTree,
    learning_rate: jax.Array | float,
) -> tuple[PyTree, optax.OptState]:
    """(params, opt_state) after a step; the optimizer gives its direction only."""
    directions, opt_state = optimizer.update(gradients, opt_state, params)
    steps = jax.tree.map(lambda x: -learning_rate * x, directions)
    return optax.apply_updates(params, steps), opt_state


def decayed(
    learning_rate: float, steps: jax.Array, total_steps: int | None
) -> jax.Array:
    """The step size after `steps` of `total_steps`: falls linearly to 0; None: never."""
    if not total_steps:
        return jnp.float32(learning_rate)
    share = jnp.minimum(steps / float(total_steps), 1.0)  # may pass 2^31
    return learning_rate * (1.0 - share)
