"""Gymnax's environments (https://github.com/RobertTLange/gymnax), 0.0.9 and 1.0."""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition


@dataclasses.dataclass(frozen=True, eq=False)
class Gymnax:
    """`Gymnax(*gymnax.make("CartPole-v1"))`: one episode, without automatic resets.

    Gymnax 1.0 distinguishes truncations from terminations. 0.0.x reports both as `done`:
    it is a truncation where `is_terminal` is false without a time limit.
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
        return trees.space_spec(self.environment.observation_space(self.params), seen)

    def action_spec(self) -> Any:
        return trees.action_spec(self.environment.action_space(self.params))

    def _ends(self, state: Any, done: Any, truncated: Any = None) -> tuple[Any, Any]:
        """(terminated, truncated), bool [] each, whichever version of gymnax it is."""
        if truncated is not None:
            return done, truncated
        if hasattr(self.environment, "is_truncated"):
            return done, self.environment.is_truncated(state, self.params)
        if not hasattr(self.params, "max_steps_in_episode"):
            return done, False
        unlimited = with_limit(self.params, trees.NO_LIMIT)
        return done & self.environment.is_terminal(state, unlimited), done


def names() -> list[str]:
    import gymnax

    return list(gymnax.registered_envs)


def make(name: str, time_limit: int | None = None, **options: Any) -> Gymnax:
    """The environment `name`; `options` go to its constructor."""
    import gymnax

    environment, params = gymnax.make(name, **options)
    if time_limit is not None:
        params = with_limit(params, time_limit)
    return Gymnax(environment, params)


def with_limit(params: Any, steps: int) -> Any:
    """The params with another time limit, of the same Python type as before."""
    kind = type(params.max_steps_in_episode)
    return params.replace(max_steps_in_episode=kind(steps))
