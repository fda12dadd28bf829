"""Gradients of losses that are sums over sequences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from podracer import kernels
from podracer.agent import Metrics, PyTree
from podracer.learning import losses
from podracer.parallel import Average

# (params, rows [T, N, ...], memory [N, ...] before row 0) -> Terms [T, N]
Loss = Callable[[PyTree, Any, Any], losses.Terms]


def mean_gradient(
    loss: Loss,
    params: PyTree,
    rows: Any,
    memory: PyTree,
    count: int,
    average: Average,
    weight: jax.Array | None = None,
) -> tuple[PyTree, Metrics]:
    """The gradient averaged over all cores, and this core's metrics, see `losses.means`.

    Args:
      loss, params, rows, memory, weight: as for `gradient_of_sum`.
      count: divisor of the sums.
      average: over the learner cores.
    """
    gradients, sums = gradient_of_sum(loss, params, rows, memory, weight)
    gradients = jax.tree.map(lambda x: x / count, gradients)
    gradients, taken = average((gradients, sums.taken))
    metrics = losses.means(sums, count, taken)
    return gradients, metrics | {"gradient_norm": optax.tree.norm(gradients)}


def gradient_of_sum(
    loss: Loss,
    params: PyTree,
    rows: Any,
    memory: PyTree,
    weight: jax.Array | None = None,
) -> tuple[PyTree, losses.Sums]:
    """The gradient of a sum over the batch, and the sums of all terms.

    Args:
      loss: of a part of the batch; its terms are summed over T and N.
      params: differentiated by.
      rows: [N, T, ...], sequences first: see `sequences`.
      memory: [N, ...] at row 0.
      weight: [N], how many times a sequence counts; None: once.
    """

    def summed(params, rows, memory):
        rows, weight = rows  # [T, N, ...], [1, N]
        weight = None if weight is None else weight[0]
        return losses.reduced(loss(params, rows, memory), weight)

    weight = None if weight is None else weight[:, None]
    return kernels.grad_of_sum(summed)(params, (rows, weight), memory)


def sequences(rows: PyTree) -> PyTree:
    """Rows [T, N, ...] as sequences [N, T, ...]."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)
