"""Specs of choices that an environment counts from another number than 0.

Runners and agents count from 0, as dm_env does. `start` is what the environment's own numbers
begin with: `podracer.load` speaks these.
"""

from typing import Any

import numpy as np
from dm_env import specs


class Choice(specs.DiscreteArray):
    """One choice, 0 to `num_values - 1` here, from `start` on in the environment."""

    def __init__(
        self, num_values: int, dtype: Any = np.int32, start: int = 0, name: Any = None
    ):
        super().__init__(num_values, dtype, name)
        self._start = int(np.int64(start))  # OverflowError beyond

    @property
    def start(self) -> int:
        return self._start

    def __reduce__(self):
        return Choice, (self.num_values, self.dtype, self.start, self.name)


class Choices(specs.BoundedArray):
    """Several choices, each 0 to its `maximum` here, from its `start` on in the environment."""

    def __init__(
        self,
        shape: Any,
        dtype: Any,
        minimum: Any,
        maximum: Any,
        start: Any = 0,
        name: Any = None,
    ):
        super().__init__(shape, dtype, minimum, maximum, name)
        self._start = np.asarray(start, np.int64)
        np.broadcast_to(self._start, self.shape)  # ValueError where it does not fit

    @property
    def start(self) -> np.ndarray:  # of all, [], or of each
        return self._start

    def __reduce__(self):
        arguments = self.shape, self.dtype, self.minimum, self.maximum, self.start
        return Choices, (*arguments, self.name)


def of(spec: specs.Array) -> np.ndarray:
    """int64, what the environment's own numbers begin with: [], or the spec's shape."""
    return np.asarray(getattr(spec, "start", 0), np.int64)


def own(spec: specs.Array, x: np.ndarray) -> np.ndarray:
    """Numbers [..., *shape] of the spec as the environment's own."""
    start = of(spec)
    return x + start if start.any() else x


def from_own(spec: specs.Array, x: np.ndarray) -> np.ndarray:
    """The environment's own numbers [..., *shape] as the spec's.

    Raises ValueError for one that is no choice.
    """
    if not isinstance(spec, specs.DiscreteArray | Choices):
        return x
    start = of(spec)
    highest = start + spec.maximum
    if (wrong := (x < start) | (x > highest)).any():
        low, high = (np.broadcast_to(b, x.shape)[wrong][0] for b in (start, highest))
        raise ValueError(
            f"an observation has {x[wrong].flat[0]}; it must be from {low} to {high}"
        )
    return x - start if start.any() else x
