"""Brax's environments (arXiv:2106.13281), and those of libraries with its interface."""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.adapters import trees
from envs_jax.environment import Key, restart, transition

EPISODE_LENGTH = 1_000  # steps, the default of brax.envs.create


@dataclasses.dataclass(frozen=True, eq=False)
class Brax:
    """`Brax(brax.envs.get_environment("ant"))`: one episode, without brax's wrappers.

    `done` is a termination unless `info["truncation"]` is set. Without its wrappers brax
    has no time limit: `make` applies `time_limit`. Actions are -1 to 1.
    """

    environment: Any
    time_limit: int | None = EPISODE_LENGTH

    def initial_state(self, key: Key) -> tuple[Any, dm_env.TimeStep]:
        state = trees.arrays(self.environment.reset(trees.raw_key(key)))
        return state, restart(state.obs)

    def step(
        self, key: Key, state: Any, action: jax.Array
    ) -> tuple[Any, dm_env.TimeStep]:
        del key  # brax keeps one in its state where it needs one
        # A copy: brax writes into the dictionaries of the state that it is given.
        after = self.environment.step(trees.arrays(state), action)
        after = trees.as_before(after, state)
        timestep = transition(after.reward, after.obs, after.done > 0)
        truncated = after.info.get("truncation", jnp.zeros(())) > 0
        discount = jnp.where(truncated, 1.0, timestep.discount)
        return after, timestep._replace(discount=discount)

    def observation_spec(self) -> Any:
        first = jax.eval_shape(self.initial_state, jax.random.key(0))[1]
        return jax.tree.map(trees.array_spec, first.observation)

    def action_spec(self) -> dm_env.specs.BoundedArray:
        return trees.numbers_spec((self.environment.action_size,), -1, 1)


def names() -> list[str]:
    from brax import envs

    return list(envs._envs)  # brax has no public list


def make(name: str, time_limit: int | None = None, **options: Any) -> Brax:
    """The environment `name`; `options` go to its constructor, for example `backend`."""
    from brax import envs

    environment = envs.get_environment(name, **options)
    return Brax(environment, EPISODE_LENGTH if time_limit is None else time_limit)
