"""Work in blocks whose activations stay in a CPU's cache, recomputed rather than stored.

On a CPU, activations that leave its cache cost more than the arithmetic. A block small
enough to stay in the cache needs none of them stored. Other platforms compute all at once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from podracer.kernels.platforms import by_platform
from podracer.kernels.switch import is_on

# What a CPU processes at once:
CACHE = 2**21  # bytes of observations
SAMPLES = 512  # number of observations
# Up to WIDE sequences are slow row by row, and keep activations of LONG times as much.
WIDE, LONG = 8, 8


def grad_of_sum(loss: Callable) -> Callable:
    """`jax.grad(loss, has_aux=True)` of a sum over sequences, of which a CPU takes some at a
    time and adds up the gradients.

    Args:
      loss: (params, rows [T, N, ...], memory [N, ...]) -> (sum over N, a tree of such sums).

    Returns: (params, rows [N, T, ...], memory [N, ...]) -> (gradient, that tree). Sequences
    come first, since blocks of contiguous ones are copied in one piece.
    """

    @partial(jax.jit, inline=True)  # traced once for both of its uses below
    def at_once(params, rows, memory):
        rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)
        return jax.grad(loss, has_aux=True)(params, rows, memory)

    def by_blocks(params, rows, memory):
        sequences, length = jax.tree.leaves(rows)[0].shape[:2]
        nbytes = _nbytes(rows) // sequences
        recurrent = bool(jax.tree.leaves(memory))
        size = sequences_at_once(length, nbytes, sequences, recurrent)

        def of_block(start):
            block = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), (rows, memory)
            )
            return at_once(params, *block)

        def add(sums, start):
            return jax.tree.map(jnp.add, sums, of_block(start)), None

        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_block, 0))
        return jax.lax.scan(add, zeros, jnp.arange(0, sequences, size))[0]

    def gradient(params, rows, memory):
        if not is_on("blocking"):
            return at_once(params, rows, memory)
        return by_platform(params, rows, memory, cpu=by_blocks, default=at_once)

    return gradient


def unroll(step: Callable, at_once: Callable) -> Callable:
    """`at_once`, which a CPU computes row by row where rows are wide: 2 to 3 times as fast.

    Args:
      step: (params, memory [B, ...], row [B, ...]) -> (memory, predictions [B, ...]).
      at_once: (params, memory, timesteps [T, B, ...]) -> the predictions [T, B, ...] of
        `step` at one row after the other.
    """

    def row_by_row(params, memory, timesteps):
        def row(memory, timestep):
            return jax.checkpoint(step)(params, memory, timestep)

        def rows(block):
            return jax.lax.scan(row, *block)[1]

        return by_blocks(rows, memory, timesteps)

    def unrolled(params, memory, timesteps):
        nbytes = _nbytes(timesteps.observation)
        rows = timesteps.reward.shape
        if keeps_activations(*rows, nbytes) or not is_on("blocking"):
            return at_once(params, memory, timesteps)
        return by_platform(params, memory, timesteps, cpu=row_by_row, default=at_once)

    return unrolled


def sequences_at_once(length: int, nbytes: int, sequences: int, recurrent: bool) -> int:
    """How many of so many sequences, of so many rows and bytes each, are a block.

    A divisor of their number: few, so that activations stay in the cache, but up to WIDE
    for a recurrent core, which is slow with few. The next larger one, if its activations are
    kept, where there are only small divisors, as of twice a prime number. If these sequences
    are too long to keep their activations, all: `unroll` then goes row by row, and rows are
    as wide as there are sequences.
    """

    def is_kept(size: int) -> bool:
        return keeps_activations(length, size, size * nbytes)

    most = max(1, min(SAMPLES // length, CACHE // nbytes), WIDE * recurrent)
    size = _largest_divisor(sequences, most)
    if 4 * size < min(most, sequences):
        larger = sequences // _largest_divisor(sequences, sequences // most)
        size = larger if is_kept(larger) else size
    return size if is_kept(size) else sequences


def keeps_activations(length: int, width: int, nbytes: int) -> bool:
    """Whether `length` rows of `width` observations are computed at once, not row by row.

    `nbytes` are those of all observations. A single row has no rows to go by.
    """
    times = LONG if width <= WIDE or length == 1 else 1
    return length * width <= times * SAMPLES and nbytes <= times * CACHE


def by_blocks(function: Callable, memory: Any, timesteps: Any) -> Any:
    """`function((memory, timesteps))` for one block of the batch after another.

    Blocks are as large as CACHE allows for a row of observations.
    """
    batch_size = timesteps.reward.shape[1]
    row = _nbytes(timesteps.observation) // len(timesteps.reward)
    blocks = batch_size // _largest_divisor(batch_size, batch_size * CACHE // row)
    if blocks == 1:
        return function((memory, timesteps))

    def cut(x, axis):
        return jnp.stack(jnp.split(x, blocks, axis))

    memory = jax.tree.map(lambda x: cut(x, 0), memory)
    timesteps = jax.tree.map(lambda x: cut(x, 1), timesteps)
    results = jax.lax.map(function, (memory, timesteps))  # [blocks, T, B / blocks, ...]
    return jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], batch_size, *x.shape[3:]),
        results,
    )


def _largest_divisor(number: int, most: int) -> int:
    """The largest number up to `most` that divides `number`."""
    return next(n for n in range(max(1, most), 0, -1) if number % n == 0)


def _nbytes(tree: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))
