"""Fully connected layers and their inputs, in operations whose gradients are fast on a CPU."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from podracer.kernels.platforms import by_platform
from podracer.kernels.switch import is_on

NARROW = 8  # outputs up to which a CPU multiplies by one column after the other


def dot_general(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any
) -> jax.Array:
    """`lax.dot_general` of a layer's inputs x [..., K] and its kernel [K, F].

    For `flax.linen.Dense(dot_general=...)`.
    """
    outputs = kernel.shape[-1]
    if outputs == 1 or not is_on("products"):
        return lax.dot_general(x, kernel, dimension_numbers, **options)
    product = _by_column if outputs <= NARROW else _transposed
    return product(x, kernel, dimension_numbers, **options)


def concatenate(arrays: Sequence[jax.Array], axis: int) -> jax.Array:
    """`jnp.concatenate`, whose result a CPU stores for all layers and gradients that read it.

    XLA:CPU recomputes what depends on one array for each use, even within the slow loop
    that transposes x for a kernel's gradient. A selection depends on two arrays, and is
    stored if no reshape follows; so are the results of costly functions such as tanh.
    """

    def on_cpu(x):
        rows = x.reshape(-1, x.shape[-1])
        return jnp.where(jnp.isnan(rows), jnp.nan, rows).reshape(x.shape)

    x = jnp.concatenate(arrays, axis)
    if not is_on("products"):
        return x
    return by_platform(x, cpu=on_cpu, default=lambda x: x)


def relu(x: jax.Array) -> jax.Array:
    """`jax.nn.relu` of [..., F], whose result is stored as that of `concatenate`."""
    if not is_on("products"):
        return jax.nn.relu(x)
    rows = x.reshape(-1, x.shape[-1])
    return jnp.where(rows <= 0, 0.0, rows).reshape(x.shape)


def _by_column(x, kernel, dimension_numbers, **options):
    """XLA:CPU takes as long for the gradient of a kernel of 2 columns as for one of 64, but is
    fast for a single one."""
    whole = partial(lax.dot_general, dimension_numbers=dimension_numbers, **options)

    def on_cpu(x, kernel):
        columns = jnp.split(kernel, kernel.shape[1], 1)
        return jnp.concatenate([whole(x, column) for column in columns], -1)

    return by_platform(x, kernel, cpu=on_cpu, default=whole)


def _transposed(x, kernel, dimension_numbers, precision=None):
    """The kernel's gradient is x' times the output's. XLA:CPU takes twice as long for it as
    for the same product of an x' that is already in memory, which costs less to write."""
    rows = x.reshape(-1, x.shape[-1])
    return _product(precision, rows, kernel).reshape(*x.shape[:-1], -1)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(precision, x, kernel):
    return jnp.dot(x, kernel, precision=precision)


@_product.defjvp
def _product_jvp(precision, primals, tangents):
    x, kernel = primals
    d_x, d_kernel = tangents
    written = by_platform(
        x, cpu=lambda x: lax.optimization_barrier(x.T), default=jnp.transpose
    )
    # Linear in d_kernel: in reverse mode this product becomes x' times the output's gradient.
    of_kernel = jnp.einsum("kn,kf->nf", written, d_kernel, precision=precision)
    return _product(precision, x, kernel), _product(precision, d_x, kernel) + of_kernel
