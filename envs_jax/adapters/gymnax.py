"""Gymnax's environments (https://github.com/RobertTLange/gymnax), 0.0.9 and 1.0."""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition

NO_LIMIT = 2**31 - 1  # steps


@dataclasses.dataclass(frozen=True, eq=False)
class Gymnax:
    """`Gymnax(*gymnax.make("CartPole-v1"))`: one episode of it, without its resets.

    Gymnax 1.0 tells a time limit from a termination. 0.0.x says `done` to both: what
    its `is_terminal` would not say without a limit is taken for a time limit here.
    """

    environment: Any
    params: Any  # gymnax's: physics, and max_steps_in_episode

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        observation, state = self.environment.reset_env(key, self.params)
        return trees.arrays(state), restart(trees.arrays(observation))

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        observation, after, reward, *ends, _ = self.environment.step_env(
            key, state, action, self.params
        )
        after = trees.as_before(after, state)
        terminated, truncated = self._ends(after, *ends)
        timestep = transition(reward, trees.arrays(observation), terminated)
        last = jnp.int32(dm_env.StepType.LAST)
        step_type = jnp.where(truncated, last, timestep.step_type)
        return after, timestep._replace(step_type=step_type)

    def observation_spec(self) -> Any:
        seen = jax.eval_shape(self.initial_state, jax.random.key(0))[1].observation
        space = self.environment.observation_space(self.params)
        if hasattr(space, "n") and jnp.issubdtype(seen.dtype, jnp.integer):
            return dm_env.specs.DiscreteArray(space.n, seen.dtype)
        bounds = (space.low, space.high) if hasattr(space, "low") else None
        return jax.tree.map(lambda x: trees.array_spec(x, bounds), seen)

    def action_spec(self) -> Any:
        space = self.environment.action_space(self.params)
        if hasattr(space, "n"):
            return trees.choice_spec(space.n)
        return trees.numbers_spec(space.shape, space.low, space.high)

    def _ends(self, state: Any, done: Any, truncated: Any = None) -> tuple[Any, Any]:
        """(terminated, truncated), bool [] each, from what any version says."""
        if truncated is not None:
            return done, truncated
        if hasattr(self.environment, "is_truncated"):
            return done, self.environment.is_truncated(state, self.params)
        if not hasattr(self.params, "max_steps_in_episode"):
            return done, False
        unlimited = with_limit(self.params, NO_LIMIT)
        return done & self.environment.is_terminal(state, unlimited), done


def names() -> list[str]:
    import gymnax

    return list(gymnax.registered_envs)


def make(name: str, time_limit: int | None = None, **options: Any) -> Gymnax:
    """The environment of that name; `options` are its constructor's."""
    import gymnax

    environment, params = gymnax.make(name, **options)
    if time_limit is not None:
        params = with_limit(params, time_limit)
    return Gymnax(environment, params)


def with_limit(params: Any, steps: int) -> Any:
    """The same with another time limit, as a number of the same type."""
    kind = type(params.max_steps_in_episode)
    return params.replace(max_steps_in_episode=kind(steps))
