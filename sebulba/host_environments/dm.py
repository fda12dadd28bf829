"""dm_env environments: `dm:MODULE:FUNCTION`, whose function makes one.

In the worker each becomes a gymnasium environment, so that there is one kind of worker.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces


class DmEnv(gymnasium.Env):
    """A dm_env environment, as gymnasium would have it.

    LAST with discount 0 is a termination, any other LAST a truncation. Discounts between
    0 and 1 on the way are lost.
    """

    def __init__(self, environment: Any):
        self._environment = environment
        self.observation_space = space_of(environment.observation_spec())
        self.action_space = space_of(environment.action_spec())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(self._environment.reset().observation), {}

    def step(self, action):
        action = np.asarray(action, self._environment.action_spec().dtype)
        after = self._environment.step(action)
        over, natural = after.last(), after.discount == 0
        reward = 0.0 if after.reward is None else float(after.reward)
        seen = self._seen(after.observation)
        return seen, reward, bool(over and natural), bool(over and not natural), {}

    def close(self):
        self._environment.close()

    def _seen(self, observation):
        """Numbers as arrays of the space's type."""

        def as_space(space, x):
            if isinstance(space, spaces.Dict):
                return {name: as_space(part, x[name]) for name, part in space.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(as_space(*pair) for pair in zip(space, x, strict=True))
            return np.asarray(x, space.dtype)

        return as_space(self.observation_space, observation)


def space_of(spec: Any) -> spaces.Space:
    """The space of a pytree of specs."""
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values))
    if isinstance(spec, specs.Array):
        low, high = (-np.inf, np.inf)
        if isinstance(spec, specs.BoundedArray):
            low, high = spec.minimum, spec.maximum
        elif spec.dtype.kind not in "f":
            limits = np.iinfo(spec.dtype) if spec.dtype.kind in "iu" else None
            low, high = (limits.min, limits.max) if limits else (0, 1)
        dtype = np.int8 if spec.dtype == bool else spec.dtype
        low, high = (
            np.broadcast_to(np.asarray(x, dtype), spec.shape) for x in (low, high)
        )
        return spaces.Box(low, high, dtype=dtype)
    if hasattr(spec, "items"):
        return spaces.Dict({name: space_of(part) for name, part in spec.items()})
    return spaces.Tuple([space_of(part) for part in spec])


def maker(path: str, given: dict[str, Any], limit: int | None) -> Callable:
    """(seed) -> what a worker calls; the function gets the seed if it takes one."""

    def make(seed: int) -> Callable[[], gymnasium.Env]:
        def make_one() -> gymnasium.Env:
            module, _, name = path.partition(":")
            function = getattr(importlib.import_module(module), name)
            takes = inspect.signature(function).parameters
            seeded = {"seed": seed} if "seed" in takes and "seed" not in given else {}
            np.random.seed(seed % 2**32)
            environment = DmEnv(function(**given, **seeded))
            if limit is None:
                return environment
            return gymnasium.wrappers.TimeLimit(environment, limit)

        return make_one

    return make
