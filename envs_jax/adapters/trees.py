"""Trees of arrays from libraries that are less strict about them than the protocol."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs


def raw_key(key: jax.Array) -> jax.Array:
    """uint32 [2], the kind of key that these libraries were written for."""
    return jax.random.key_data(key)


def arrays(tree: Any) -> Any:
    """A copy whose leaves are arrays of a fixed dtype, Python's numbers among them."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def as_before(after: Any, before: Any) -> Any:
    """`after` with the dtypes of `before`: a state must not change its type."""
    return jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), after, before)


def array_spec(x: Any, bounds: Any = None) -> specs.Array:
    """The spec of arrays like `x`, within `bounds`: (low, high), if they fit `x`."""
    if bounds is None or not all(_fits(np.asarray(bound), x) for bound in bounds):
        return specs.Array(x.shape, x.dtype)
    low, high = (np.asarray(bound).astype(x.dtype) for bound in bounds)
    return specs.BoundedArray(x.shape, x.dtype, low, high)


def _fits(bound: np.ndarray, x: Any) -> bool:
    """Whether a bound's shape and numbers are possible ones of arrays like `x`."""
    if x.ndim < bound.ndim or any(
        b not in (1, n) for b, n in zip(bound.shape[::-1], x.shape[::-1], strict=False)
    ):
        return False
    return not np.issubdtype(x.dtype, np.integer) or bool(np.all(abs(bound) < 2**31))


def choice_spec(num_values: int) -> specs.DiscreteArray:
    """Of an action that is one of so many."""
    return specs.DiscreteArray(int(num_values), np.int32, "action")


def numbers_spec(shape: tuple[int, ...], low: Any, high: Any) -> specs.BoundedArray:
    """Of an action that is an array of real numbers."""
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return specs.BoundedArray(shape, np.float32, low, high, "action")
