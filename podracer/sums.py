"""Sums whose rounding errors do not grow with the number of their terms."""

from typing import Any

import jax
import jax.numpy as jnp


def plus(total: Any, lost: Any, new: Any) -> tuple[Any, Any]:
    """`total + new`, and what rounding has lost of it: Knuth, TAOCP 2, section 4.2.2.

    All three are pytrees of equal structure. `lost`, zeros at first, is handed to the next
    call. Without it a float32 stands still after some million terms, each of which is less
    than half of the distance between two floats.
    """
    new = jax.tree.map(jnp.add, new, lost)
    sums = jax.tree.map(jnp.add, total, new)
    return sums, jax.tree.map(_lost, total, new, sums)


def _lost(a: jax.Array, b: jax.Array, total: jax.Array) -> jax.Array:
    of_b = total - a
    return (a - (total - of_b)) + (b - of_b)
