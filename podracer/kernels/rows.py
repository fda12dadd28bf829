"""Rows written at one place in all environments, which a TPU writes at once."""

from typing import Any

import jax
import jax.numpy as jnp

from podracer.kernels.platforms import by_platform
from podracer.kernels.switch import is_on


def write_rows(rows: Any, row: Any, place: jax.Array) -> Any:
    """`rows.at[b, place[b]].set(row[b])` for each b: rows [B, N, ...], row [B, ...].

    A TPU writes to different places one after the other, so environments with the same place
    are written at once there. Environments that always step together have one place.
    """
    if not is_on("rows"):
        return _write(rows, row, place)
    return by_platform(rows, row, place, tpu=_write_each_place, default=_write)


def _write(rows: Any, row: Any, place: jax.Array) -> Any:
    index = jnp.arange(len(place))
    return jax.tree.map(lambda rows, x: rows.at[index, place].set(x), rows, row)


def _write_each_place(rows: Any, row: Any, place: jax.Array) -> Any:
    def of_one_place(carry):
        rows, left = carry
        at = place[jnp.argmax(left)]
        now = place == at

        def put(rows, x):
            old = jax.lax.dynamic_index_in_dim(rows, at, 1, keepdims=False)
            new = jnp.where(now.reshape(-1, *(1,) * (x.ndim - 1)), x, old)
            return jax.lax.dynamic_update_index_in_dim(rows, new, at, 1)

        return jax.tree.map(put, rows, row), left & ~now

    carry = rows, jnp.ones(place.shape, bool)
    return jax.lax.while_loop(lambda carry: carry[1].any(), of_one_place, carry)[0]
