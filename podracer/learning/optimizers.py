"""Update rules, the same for every agent."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from podracer.agent import PyTree

SMALL = 2**16  # parameters; from there on, a vector makes a CPU slower


@partial(
    jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["unravel"]
)
@dataclasses.dataclass(frozen=True)
class Vector:
    """A tree as one array: an optimizer takes one kernel for it, not one for each leaf."""

    numbers: jax.Array
    unravel: Callable[[jax.Array], PyTree]


def as_vectors(params: PyTree, opt_state: optax.OptState) -> tuple[Any, Any]:
    """Both, with a `Vector` for each tree of the parameters' shapes.

    Unchanged where there are `SMALL` parameters or more.
    """
    if sum(x.size for x in jax.tree.leaves(params)) >= SMALL:
        return params, opt_state
    alike, unravel = _kinds(params), ravel_pytree(params)[1]

    def is_alike(tree):
        return _kinds(tree) == alike

    return jax.tree.map(
        lambda x: Vector(ravel_pytree(x)[0], unravel) if is_alike(x) else x,
        (params, opt_state),
        is_leaf=is_alike,
    )


def _kinds(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)


def as_trees(tree: PyTree) -> PyTree:
    """A pytree with the trees that `as_vectors` had put into vectors."""

    def is_vector(x):
        return isinstance(x, Vector)

    return jax.tree.map(
        lambda x: x.unravel(x.numbers) if is_vector(x) else x, tree, is_leaf=is_vector
    )


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
