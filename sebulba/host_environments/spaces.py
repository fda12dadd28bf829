"""gymnasium's spaces as dm_env specs, and their members as JAX takes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from dm_env import specs

from podracer import starts
from podracer.errors import UserError

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


def as_float32(x: Any) -> Any:
    """The leaves of a pytree; float64, which accelerators lack, as float32."""
    if isinstance(x, dict):
        return {name: as_float32(part) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(map(as_float32, x))
    return x.astype(np.float32) if x.dtype == np.float64 else x


def channels_last(images: Any) -> Any:
    """Images [B, C, H, W] as [B, H, W, C], in NumPy's arrays or JAX's.

    NumPy's have the strides of a new array, even along a single channel. With another stride
    there, JAX takes ten times as long to copy them to a GPU.
    """
    if isinstance(images, np.ndarray):
        return np.stack([*np.moveaxis(images, 1, 0)], -1)
    import jax.numpy as jnp  # not at the top: worker processes have this file, not JAX

    return jnp.moveaxis(images, 1, -1)


def _is_wide(space: Any) -> bool:
    """Whether integers of this Box may need more than the 32 bits that JAX keeps."""
    if space.dtype.kind not in "iu" or space.dtype.itemsize < 8:
        return False
    limits = np.iinfo(np.int32)
    return bool((space.low < limits.min).any() or (space.high > limits.max).any())


def check_supported(name: str, space: Any, field: str = "observations") -> None:
    """Raises UserError for a space of another kind, or one without elements."""
    from gymnasium import spaces

    supported = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if isinstance(space, spaces.Dict | spaces.Tuple) and len(space.spaces):
        parts = space.spaces
        for part in parts.values() if isinstance(parts, dict) else parts:
            check_supported(name, part, field)
    elif not isinstance(space, supported) or 0 in space.shape or space.dtype == object:
        raise UserError(
            f"{name} has {field} {_one_line(space)}; supported are {SUPPORTED}, with one "
            "element at least"
        )


def spec_of(space: Any, convert: Callable = as_float32) -> Any:
    """A pytree of specs for what `convert` makes of the space's members [B, ...].

    The space must be supported, see `check_supported`.
    """
    if hasattr(space, "spaces"):
        if isinstance(space.spaces, dict):
            return {name: spec_of(x, convert) for name, x in space.spaces.items()}
        return tuple(spec_of(part, convert) for part in space.spaces)
    if space.shape == () and hasattr(space, "n"):
        return starts.Choice(int(space.n), np.int32, space.start)
    if hasattr(space, "nvec"):
        start = getattr(space, "start", 0)
        return starts.Choices(space.shape, np.int32, 0, space.nvec - 1, start)
    if not hasattr(space, "low"):  # MultiBinary
        return specs.BoundedArray(space.shape, bool, False, True)
    low, high = space.low, space.high
    if space.dtype.kind == "f":
        # Unbounded may be C++'s numeric_limits: from `min`, the smallest above 0, to `max`.
        limits = np.finfo(space.dtype)
        low = np.where(np.isin(low, (limits.tiny, limits.min)), -np.inf, low)
        high = np.where(high == limits.max, np.inf, high)
    if _is_wide(space):
        low, high = low.astype(np.float32), high.astype(np.float32)
    low, high = (convert(x[None])[0] for x in (low, high))
    return specs.BoundedArray(low.shape, low.dtype, low, high)


def as_spec(space: Any, x: Any) -> Any:
    """Members [B, ...] of a space as `spec_of` has them.

    Discrete ones count from 0; integers beyond 32 bits are float32.
    """
    if isinstance(x, dict):
        return {name: as_spec(space.spaces[name], part) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(map(as_spec, space.spaces, x))
    if hasattr(space, "start"):
        return (x - space.start).astype(np.int32)
    if not hasattr(space, "low"):
        return x.astype(bool)
    return x.astype(np.float32) if _is_wide(space) else as_float32(x)


def action_spec(name: str, space: Any) -> specs.BoundedArray:
    """One discrete action, several (integers from 0) or continuous ones; else UserError."""
    if hasattr(space, "shape") and not hasattr(space, "spaces"):
        check_supported(name, space, "actions")
        spec = spec_of(space)
        if spec.dtype.kind == space.dtype.kind == "f":
            return spec
        if spec.dtype.kind in "iu" and not spec.minimum.any():
            return spec.replace(dtype=np.int32)  # they come in several widths
    raise UserError(
        f"{name} has actions {_one_line(space)}; only discrete ones from 0 and "
        "continuous ones are supported: choose another environment"
    )


def _one_line(space: Any) -> str:
    return " ".join(str(space).split())
