"""Pytrees and specs of libraries whose dtypes are less strict than the protocol's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

NO_LIMIT = 2**31 - 1  # steps: a library's own time limit, disabled


def raw_key(key: jax.Array) -> jax.Array:
    """uint32 [2], an old-style key, which these libraries expect."""
    return jax.random.key_data(key)


def arrays(tree: Any) -> Any:
    """A copy whose leaves are all arrays of a fixed dtype, Python numbers included."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def as_before(after: Any, before: Any) -> Any:
    """`after` with the dtypes of `before`: a state's dtypes must never change."""
    return jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), after, before)


def array_spec(x: Any, bounds: Any = None) -> specs.Array:
    """The spec of arrays like `x`; `bounds` (low, high) are dropped if they do not fit."""
    if bounds is None or not all(_fits(np.asarray(bound), x) for bound in bounds):
        return specs.Array(x.shape, x.dtype)
    low, high = (np.asarray(bound).astype(x.dtype) for bound in bounds)
    return specs.BoundedArray(x.shape, x.dtype, low, high)


def _fits(bound: np.ndarray, x: Any) -> bool:
    """Whether a bound broadcasts to the shape of `x` and its dtype can hold it."""
    if x.ndim < bound.ndim or any(
        b not in (1, n) for b, n in zip(bound.shape[::-1], x.shape[::-1], strict=False)
    ):
        return False
    return not np.issubdtype(x.dtype, np.integer) or bool(np.all(abs(bound) < 2**31))


def space_spec(space: Any, seen: Any) -> Any:
    """The spec of observations shaped as `seen`, within a gymnax space's bounds."""
    if hasattr(space, "n") and jnp.issubdtype(seen.dtype, jnp.integer):
        return specs.DiscreteArray(space.n, seen.dtype)
    bounds = (space.low, space.high) if hasattr(space, "low") else None
    return jax.tree.map(lambda x: array_spec(x, bounds), seen)


def action_spec(space: Any) -> specs.BoundedArray:
    """The spec of a gymnax space's actions: one choice, several choices, or numbers."""
    if hasattr(space, "number_of_dims_per_distribution"):  # Kinetix's
        choices = np.asarray(space.number_of_dims_per_distribution, np.int32)
        return specs.BoundedArray(choices.shape, np.int32, 0, choices - 1, "action")
    if hasattr(space, "n"):
        return choice_spec(space.n)
    return numbers_spec(space.shape, space.low, space.high)


def choice_spec(num_values: int) -> specs.DiscreteArray:
    """The spec of a discrete action, one of `num_values`."""
    return specs.DiscreteArray(int(num_values), np.int32, "action")


def numbers_spec(shape: tuple[int, ...], low: Any, high: Any) -> specs.BoundedArray:
    """The spec of a continuous action, float32."""
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return specs.BoundedArray(shape, np.float32, low, high, "action")
