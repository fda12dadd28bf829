"""Compares the tree in a checkpoint with the one to restore."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer import parallel
from podracer.errors import UserError


def full(state: Any) -> Any:
    """The state with a scalar in place of each empty array, which Orbax refuses."""
    return jax.tree.map(lambda x: x if x.size else np.float32(0), state)


def names(tree: Any) -> set[str]:
    """Names of the leaves; the same for a tree and for its metadata in a checkpoint."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves
    }


def target(saved: Any, path: tuple, x: jax.Array, word: str) -> jax.ShapeDtypeStruct:
    """How to restore a leaf: like `x`, but REPLACEABLE leaves in their saved shape."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    for entry in path:
        key = getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", None)))
        try:
            saved = saved[key if isinstance(saved, dict | list | tuple) else str(key)]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the checkpoint has no {name}: it is of another agent, network or version "
                "of podracer"
            ) from None
    if x.size == 0:
        return parallel.like(jnp.float32(0), ())  # see full
    shape = saved.shape
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        shape = shape[: x.ndim]
    if shape != x.shape and word not in parallel.REPLACEABLE:
        raise UserError(
            f"{name} is {shape} in the checkpoint and {x.shape} here: it is of another "
            "network, batch_size or environment"
        )
    return parallel.like(x, shape)
