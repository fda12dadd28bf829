"""Fully connected layers and their inputs, in operations whose gradients are fast on a CPU."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

NARROW = 8  # outputs up to which a CPU multiplies by one column after the other


def dense(outputs: int, **options: Any) -> nn.Dense:
    """flax's Dense with these options: its parameters, and its results up to rounding."""
    product = None if outputs == 1 else by_column if outputs <= NARROW else transposed
    return nn.Dense(outputs, dot_general=product, **options)


def stored(x: jax.Array) -> jax.Array:
    """x [..., F] itself, which a CPU stores for all layers and gradients that read it.

    XLA:CPU computes what depends on one array anew for each use, even within the slow loop
    that transposes x for a kernel's gradient. A selection depends on two arrays, and is
    stored if no reshape follows; so are the results of costly functions such as tanh.
    """

    def on_cpu(x):
        rows = x.reshape(-1, x.shape[-1])
        return jnp.where(jnp.isnan(rows), jnp.nan, rows).reshape(x.shape)

    return lax.platform_dependent(x, cpu=on_cpu, default=lambda x: x)


def relu(x: jax.Array) -> jax.Array:
    """max(x, 0) of [..., F], which is `stored`."""
    rows = x.reshape(-1, x.shape[-1])
    return jnp.where(rows <= 0, 0.0, rows).reshape(x.shape)


def by_column(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any
) -> jax.Array:
    """`lax.dot_general` of x [..., K] and a kernel [K, F] of few columns F.

    XLA:CPU takes as long for the gradient of a kernel of 2 columns as for one of 64, but is
    fast for a single one.
    """
    whole = partial(lax.dot_general, dimension_numbers=dimension_numbers, **options)

    def on_cpu(x, kernel):
        columns = jnp.split(kernel, kernel.shape[1], 1)
        return jnp.concatenate([whole(x, column) for column in columns], -1)

    return lax.platform_dependent(x, kernel, cpu=on_cpu, default=whole)


def transposed(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, precision: Any = None
) -> jax.Array:
    """`lax.dot_general` of x [..., K] and a kernel [K, F].

    The kernel's gradient is x' times the output's. XLA:CPU takes twice as long for it as for
    the same product of an x' that is already in memory, which costs less to write.
    """
    rows = x.reshape(-1, x.shape[-1])
    return _product(precision, rows, kernel).reshape(*x.shape[:-1], -1)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(precision, x, kernel):
    return jnp.dot(x, kernel, precision=precision)


@_product.defjvp
def _product_jvp(precision, primals, tangents):
    x, kernel = primals
    d_x, d_kernel = tangents
    written = lax.platform_dependent(
        x, cpu=lambda x: lax.optimization_barrier(x.T), default=jnp.transpose
    )
    # Linear in d_kernel: in reverse mode this product becomes x' times the output's gradient.
    of_kernel = jnp.einsum("kn,kf->nf", written, d_kernel, precision=precision)
    return _product(precision, x, kernel), _product(precision, d_x, kernel) + of_kernel
