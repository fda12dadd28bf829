"""What gymnasium's spaces say, in dm_env's words."""

from collections.abc import Callable
from typing import Any

import numpy as np
from dm_env import specs

from podracer.errors import UserError


def as_float32(x: Any) -> Any:
    """float64, which no core wants, as float32; the leaves of a pytree."""
    if isinstance(x, dict):
        return {name: as_float32(part) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(map(as_float32, x))
    return x.astype(np.float32) if x.dtype == np.float64 else x


def spec_of(space: Any, convert: Callable = as_float32) -> Any:
    """A pytree of specs for what `convert` makes of the space's members [B, ...]."""
    if hasattr(space, "spaces"):
        if isinstance(space.spaces, dict):
            return {name: spec_of(x, convert) for name, x in space.spaces.items()}
        return tuple(spec_of(part, convert) for part in space.spaces)
    if space.shape == () and hasattr(space, "n"):
        return specs.DiscreteArray(int(space.n), dtype=np.int32)
    if hasattr(space, "nvec"):
        return specs.BoundedArray(space.shape, np.int32, 0, space.nvec - 1)
    if not hasattr(space, "low"):  # MultiBinary
        return specs.BoundedArray(space.shape, bool, False, True)
    low, high = space.low, space.high
    if space.dtype.kind == "f":
        # Unbounded may be C++'s numeric_limits: from `min`, the smallest above 0, to `max`.
        limits = np.finfo(space.dtype)
        low = np.where(np.isin(low, (limits.tiny, limits.min)), -np.inf, low)
        high = np.where(high == limits.max, np.inf, high)
    low, high = (convert(x[None])[0] for x in (low, high))
    return specs.BoundedArray(low.shape, low.dtype, low, high)


def action_spec(name: str, space: Any) -> specs.BoundedArray:
    """One discrete action, several (integers from 0) or continuous ones; else UserError."""
    spec = spec_of(space)
    kind = np.dtype(getattr(spec, "dtype", object)).kind
    if kind == "f":
        return spec
    if kind in "iu" and not spec.minimum.any():
        return spec.replace(dtype=np.int32)  # they come in several widths
    raise UserError(
        f"{name} has actions {' '.join(str(space).split())}; only discrete ones from 0 and "
        "continuous ones are supported: choose another environment"
    )
