"""Prioritized replay: which slots of a ring are sampled (Schaul et al., arXiv:1511.05952).

A slot's mass is its priority to the power of `replay.priority`, and 0 where nothing was ever
kept: those are the last ones. Slots are sampled in proportion to their masses. M, the number
of masses, is that of slots, rounded up so that they form equal blocks.
"""

import jax
import jax.numpy as jnp

from podracer.agent import Key

LEAST = 1e-6  # of a priority, so that every trajectory may be sampled


def empty(slots: int) -> jax.Array:
    """The masses [M] of a ring of that many slots in which nothing is kept."""
    width = _width(slots)
    return jnp.zeros(-(-slots // width) * width, jnp.float32)


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
      masses: [M].
      filled: number of slots in use, which are the first ones and at least one. Whatever
        rounding does, no other is sampled.
      count: number of slots to sample.
    """
    width, last = _width(masses.size), filled - 1
    blocks = masses.reshape(-1, width)
    of_block, of_slot = jax.random.uniform(key, (2, count))
    block = _chosen(of_block, jnp.sum(blocks, axis=1)[None])
    block = jnp.minimum(block, last // width)
    slot = _chosen(of_slot, blocks[block])
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


def _width(slots: int) -> int:
    """The size of a block: a power of two, whose square is not below the number of slots.

    It is the same for M as for the slots that M comes from.
    """
    return 1 << -(-(slots - 1).bit_length() // 2)


def _chosen(numbers: jax.Array, masses: jax.Array) -> jax.Array:
    """The place in a row of `masses` that each number [N] from 0 to 1, 1 excluded, stands for.

    Rows are [N, masses], or a single one for all numbers.
    """
    until = jnp.cumsum(masses, axis=1)
    return jnp.sum(until <= numbers[:, None] * until[:, -1:], axis=1)
