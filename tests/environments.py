"""Small environments that make a single property visible."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from envs_jax.environment import restart, transition


@dataclasses.dataclass(frozen=True)
class Counter:
    """The observation counts steps since FIRST; an episode has `length` of them.

    The reward is the observation that it leads to, so that a reward paired with the
    wrong action is seen.
    """

    length: int = 5

    def initial_state(self, key):
        return jnp.int32(0), restart(jnp.zeros(1))

    def step(self, key, state, action):
        state = state + 1
        observation = state.astype(jnp.float32)
        return state, transition(observation, observation[None], state >= self.length)

    def observation_spec(self) -> Any:
        return specs.Array((1,), np.float32)

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)


@dataclasses.dataclass(frozen=True)
class Bandit(Counter):
    """Action 1 pays, action 0 costs, nothing else matters."""

    def step(self, key, state, action):
        state = state + 1
        reward = jnp.where(action == 1, 1.0, -1.0)
        return state, transition(reward, jnp.zeros(1), state >= self.length)


@dataclasses.dataclass(frozen=True)
class Explosive(Counter):
    """The reward is NaN from a given step of the first episode on."""

    at: int = 7

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        reward = jnp.where(state >= self.at, jnp.nan, 0.0)
        return state, timestep._replace(reward=reward)
