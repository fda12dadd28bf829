"""Update rules, the same for every agent."""

from typing import Any

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
    """(params, opt_state) after a step; the optimizer itself has no learning rate."""
    directions, opt_state = optimizer.update(gradients, opt_state, params)
    steps = jax.tree.map(lambda x: -learning_rate * x, directions)
    return optax.apply_updates(params, steps), opt_state


def rmsprop(config: Any) -> optax.GradientTransformation:
    """Clipping, then PyTorch's RMSProp, both without the learning rate.

    Args:
      config: has `max_gradient_norm`, `rmsprop_decay`, `rmsprop_epsilon` and `momentum`.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.scale_by_rms(
            config.rmsprop_decay, config.rmsprop_epsilon, eps_in_sqrt=False
        ),
        optax.trace(config.momentum) if config.momentum else optax.identity(),
    )


def learning_rate(config: Any, updates: jax.Array, steps: int) -> jax.Array:
    """An agent's learning rate after `updates` of so many environment steps each."""
    return decayed(
        config.learning_rate,
        updates.astype(jnp.float32) * steps,
        config.total_steps if config.decay_learning_rate else None,
    )


def decayed(
    learning_rate: float, steps: jax.Array, total_steps: int | None
) -> jax.Array:
    """The learning rate after `steps`: linear decay to 0 at `total_steps`; None: constant."""
    if not total_steps:
        return jnp.float32(learning_rate)
    share = jnp.minimum(steps / float(total_steps), 1.0)  # both may exceed 2^31
    return learning_rate * (1.0 - share)
