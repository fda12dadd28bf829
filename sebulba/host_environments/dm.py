"""dm_env environments: `dm:MODULE:FUNCTION`, a function that returns one.

In the worker process each becomes a gymnasium environment: one kind of worker serves both.
"""

import importlib
import inspect
import random
from collections.abc import Callable
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from podracer.errors import UserError
from sebulba.host_environments import checking

SUPPORTED = "Array, BoundedArray, DiscreteArray, and dicts and tuples of these"


class DmEnv(gymnasium.Env):
    """A dm_env environment as a gymnasium one.

    LAST with discount 0 is a termination, any other LAST a truncation. Discounts strictly
    between 0 and 1 are lost. Observations are checked against their specs, see `checking`.

    Raises:
      UserError: it is no dm_env.Environment, or its specs are not supported.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        name: str = "a dm_env environment",
        check_bounds: bool = True,
    ):
        if not isinstance(environment, dm_env.Environment):
            raise UserError(
                f"{checking.shown(environment)} is no dm_env.Environment: name a function "
                "that returns one"
            )
        self._environment = environment
        observation = environment.observation_spec()
        self.observation_space = space_of(observation)
        self.action_space = space_of(environment.action_spec())
        declared = checking.of_spec(observation)
        self._check = checking.checker(name, declared, bounds=check_bounds)
        if hasattr(getattr(environment, "physics", None), "render"):  # dm_control's
            self.render_mode = "rgb_array"

    def render(self):
        """dm_control's first camera, uint8 [240, 320, 3]."""
        return self._environment.physics.render(240, 320, camera_id=0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(self._environment.reset(), 0.0), {}

    def step(self, action):
        action = np.asarray(action, self._environment.action_spec().dtype)
        after = self._environment.step(action)
        reward = 0.0 if after.reward is None else after.reward
        observation = self._observation(after, reward)
        terminated = after.last() and after.discount == 0
        truncated = after.last() and not terminated
        return observation, reward, bool(terminated), bool(truncated), {}

    def close(self):
        self._environment.close()

    def _observation(self, timestep: dm_env.TimeStep, reward: Any) -> Any:
        """As arrays of the space's dtypes."""
        self._check(timestep.observation, reward)

        def as_space(space, x):
            if isinstance(space, spaces.Dict):
                return {name: as_space(part, x[name]) for name, part in space.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(as_space(*pair) for pair in zip(space, x, strict=True))
            return np.asarray(x, space.dtype)

        return as_space(self.observation_space, timestep.observation)


def space_of(spec: Any) -> spaces.Space:
    """The space of a pytree of specs. Raises UserError for specs of other kinds."""
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values))
    if isinstance(spec, specs.Array) and spec.dtype.kind in checking.KINDS:
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
    if isinstance(spec, tuple | list):
        return spaces.Tuple([space_of(part) for part in spec])
    raise UserError(f"the spec {checking.shown(spec)} is none of {SUPPORTED}")


def maker(path: str, arguments: dict[str, Any], options: Any) -> Callable:
    """(seed) -> what a worker calls: an environment that has the seed wherever it takes one."""

    # Not the options: their class would import JAX in the worker.
    bounds, most = options.check_bounds, options.max_episode_steps

    def make(seed: int) -> Callable[[], gymnasium.Env]:
        def make_one() -> gymnasium.Env:
            module, _, name = path.partition(":")
            function = getattr(importlib.import_module(module), name)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            theirs = function(**seeded(function, arguments, seed))
            environment = DmEnv(theirs, f"dm:{path}", bounds)
            seed_states(theirs, seed)
            if most is None:
                return environment
            return gymnasium.wrappers.TimeLimit(environment, most)

        return make_one

    return make


def seeded(function: Callable, arguments: dict[str, Any], seed: int) -> dict[str, Any]:
    """The arguments, with the seed where the function takes one that they lack.

    As `seed`, or as dm_control takes it: `random_state`, or `random` in `task_kwargs`.
    """
    try:
        takes = inspect.signature(function).parameters
    except ValueError:  # of some functions in C
        takes = {}
    own = {name: seed for name in ("seed", "random_state") if name in takes}
    task = arguments.get("task_kwargs") or {}
    if "task_kwargs" in takes and isinstance(task, dict):
        arguments = arguments | {"task_kwargs": {"random": seed} | task}
    return own | arguments


def seed_states(environment: Any, seed: int) -> None:
    """Seeds the random numbers that dm_control's episodes begin with.

    Whoever made the environment, with a seed or without: no two of a batch are equal.
    """
    task = getattr(environment, "task", None)
    for owner, name in ((task, "random"), (environment, "random_state")):
        state = getattr(owner, name, None)
        if isinstance(state, np.random.RandomState):
            state.seed(seed % 2**32)
