"""Prioritized replay: which slots of a ring are sampled (Schaul et al., arXiv:1511.05952).

A slot's mass is its priority to the power of `replay.priority`, and 0 where nothing was ever
kept: those are the last ones. Slots are sampled in proportion to their masses.
"""

import math

import jax
import jax.numpy as jnp

from podracer.agent import Key

LEAST = 1e-6  # of a priority, so that every trajectory may be sampled


def empty(slots: int) -> jax.Array:
    """Masses [slots] of a ring in which nothing is kept."""
    return jnp.zeros(slots, jnp.float32)


def with_new(masses: jax.Array, slots: jax.Array) -> jax.Array:
    """The masses after new trajectories were kept in these slots [N].

    They get the largest mass, so that they are soon learned from; 1 where they are the first.
    """
    largest = jnp.max(masses)
    return masses.at[slots].set(jnp.where(largest == 0.0, 1.0, largest))


def sample(key: Key, masses: jax.Array, filled: jax.Array, count: int) -> jax.Array:
    """Slots [count] in proportion to their masses, with replacement.

    First a block of neighbours by its sum, then a slot in it, each by a number of its own:
    a single one of 32 bits would be too coarse for a million slots.

    Args:
      key: a random key.
      masses: [slots].
      filled: number of slots in use, which are the first ones and at least one. Whatever
        rounding does, no other is sampled.
      count: number of slots to sample.
    """
    blocks = _in_blocks(masses)
    width, last = blocks.shape[1], filled - 1
    of_block, of_slot = jax.random.uniform(key, (2, count))
    block = _chosen(of_block, jnp.sum(blocks, axis=1))
    block = jnp.minimum(block, last // width)
    slot = jax.vmap(_chosen)(of_slot, blocks[block])
    return jnp.minimum(block * width + slot, last)


def weights(masses: jax.Array, importance: float) -> jax.Array:
    """Importance weights [N] of sampled slots with these masses [N].

    (number of slots * probability)^-importance, divided by the largest of the batch, in
    which all but the masses cancels.
    """
    return (jnp.min(masses) / masses) ** importance


def updated(
    masses: jax.Array, slots: jax.Array, priority: jax.Array, exponent: float
) -> jax.Array:
    """The masses where these slots [N] have new priorities [N], the larger if it has two."""
    new = jnp.maximum(priority, LEAST) ** exponent
    # In two steps, because the order of writes to one slot is not defined.
    return masses.at[slots].set(0.0).at[slots].max(new)


def _in_blocks(masses: jax.Array) -> jax.Array:
    """[blocks, width], both about the square root of the number of slots."""
    width = math.isqrt(masses.size - 1) + 1
    blocks = -(-masses.size // width)
    return jnp.pad(masses, (0, blocks * width - masses.size)).reshape(blocks, width)


def _chosen(number: jax.Array, masses: jax.Array) -> jax.Array:
    """The places in `masses` [N] that numbers from 0 to 1 stand for, 1 excluded."""
    until = jnp.cumsum(masses)
    return jnp.sum(until <= number[..., None] * until[-1], axis=-1)
