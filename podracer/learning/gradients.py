"""Gradient accumulation: the gradient of a mean over sequences, on a CPU part by part.

On a CPU, activations that leave its cache cost more than the arithmetic. A part small
enough to stay in the cache needs none of them stored or recomputed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from podracer.agent import Metrics, PyTree
from podracer.networks import sequences_at_once
from podracer.parallel import Average


def mean_gradient(
    loss: Callable[[PyTree, Any, Any], tuple[jax.Array, Metrics]],
    params: PyTree,
    rows: Any,
    memory: PyTree,
    count: int,
    average: Average,
) -> tuple[PyTree, Metrics]:
    """The gradient averaged over all cores, and the metrics of this core.

    Args:
      loss: (params, rows [T, B, ...], memory) -> (sum over the batch, metrics as such sums).
      params: differentiated by.
      rows: [B, T, ...]: a sequence is contiguous, so that it is copied in one piece.
      memory: [B, ...] at row 0.
      count: divisor of the sums.
      average: over the learner cores.
    """
    sums = gradient_of_sum(loss, params, rows, memory)
    gradients, metrics = jax.tree.map(lambda x: x / count, sums)
    gradients = average(gradients)
    return gradients, metrics | {"gradient_norm": optax.tree.norm(gradients)}


def gradient_of_sum(
    loss: Callable, params: PyTree, rows: Any, memory: PyTree
) -> tuple[PyTree, Metrics]:
    """The gradient of a sum over the batch, and the metrics as sums."""

    @partial(jax.jit, inline=True)  # traced once for both of its uses below
    def at_once(params, rows, memory):
        rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)
        return jax.grad(loss, has_aux=True)(params, rows, memory)

    def by_parts(params, rows, memory):
        batch_size, length = jax.tree.leaves(rows)[0].shape[:2]
        sequence = sum(x.nbytes for x in jax.tree.leaves(rows)) // batch_size
        recurrent = bool(jax.tree.leaves(memory))
        size = sequences_at_once(length, sequence, batch_size, recurrent)

        def of_part(start):
            part = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), (rows, memory)
            )
            return at_once(params, *part)

        def add(sums, start):
            return jax.tree.map(jnp.add, sums, of_part(start)), None

        zeros = optax.tree.zeros_like(jax.eval_shape(of_part, 0))
        return jax.lax.scan(add, zeros, jnp.arange(0, batch_size, size))[0]

    return jax.lax.platform_dependent(
        params, rows, memory, cpu=by_parts, default=at_once
    )
