"""Bandit: find the best of several arms (bsuite's bandit, arXiv:1908.03568)."""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition


class State(NamedTuple):
    reward: jax.Array  # float32 [], the last one; 0 at FIRST


@dataclasses.dataclass(frozen=True)
class Bandit:
    """An episode is one step; the arms pay evenly spaced rewards from 0 to 1.

    `instance` seeds the order of the arms. If `noise` is not 0, it is the standard
    deviation of Gaussian noise added to the reward (bsuite's bandit_noise); without
    noise nothing depends on the keys. The observation is constant: float32 [1], 1.
    """

    arms: int = 11
    instance: int = 0  # may be traced: one bandit per lifetime under vmap
    noise: float = 0.0

    def __post_init__(self):
        if self.arms < 2:
            raise ValueError(f"arms is {self.arms}; it must be at least 2")
        if self.noise < 0:
            raise ValueError(f"noise is {self.noise}; it must be at least 0")

    def rewards(self) -> jax.Array:
        """The rewards of the arms without noise, float32 [arms]."""
        key = jax.random.key(self.instance)
        return jax.random.permutation(
            key, jnp.linspace(0.0, 1.0, self.arms, dtype=jnp.float32)
        )

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        del key  # every episode is the same
        return State(jnp.float32(0)), restart(jnp.ones(1, jnp.float32))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        reward = self.rewards()[action]
        if self.noise:
            reward += self.noise * jax.random.normal(key, dtype=jnp.float32)
        return State(reward), transition(reward, jnp.ones(1, jnp.float32), True)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return dm_env.specs.BoundedArray((1,), np.float32, 1, 1)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(self.arms, name="action")

    render_fps = 2

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: a bar as high as the last reward."""
        top = (0.5, 0.1 + 0.8 * state.reward)
        return drawing.line(drawing.canvas(), (0.5, 0.1), top, 0.1, drawing.GREEN)
