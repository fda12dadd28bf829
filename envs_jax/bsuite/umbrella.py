"""Umbrella: the first action decides the last reward (bsuite, arXiv:1908.03568)."""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition
from envs_jax.random_bits import random_bits


class State(NamedTuple):
    rain: jax.Array  # int32 [], 1 if it will rain
    umbrella: jax.Array  # int32 [], 1 if it is taken: random, then the first action
    steps: jax.Array  # int32 [], since FIRST


@dataclasses.dataclass(frozen=True)
class Umbrella:
    """The first of `length` actions takes an umbrella (1) or not (0); others do nothing.

    Every step but the last pays -1 or +1 at random; the last pays +1 if umbrella and rain
    agree, else -1 (bsuite's umbrella_chain). Hence the optimal mean return is 1, and that
    of a policy that ignores the observation is 0. The observation is float32
    [3 + distractors]: the rain and the umbrella, both visible in every step, the fraction
    of the episode that remains, and random bits that are redrawn in every step.
    """

    length: int = 10
    distractors: int = 20

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"length is {self.length}; it must be at least 1")
        if self.distractors < 0:
            raise ValueError(
                f"distractors is {self.distractors}; it must be at least 0"
            )

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        noise = random_bits(key, self.distractors + 2)
        state = State(noise[-1], noise[-2], jnp.int32(0))
        return state, restart(self._observation(state, noise[:-2]))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        noise = random_bits(key, self.distractors + 1)
        umbrella = jnp.where(state.steps == 0, action, state.umbrella)
        state = State(state.rain, umbrella.astype(jnp.int32), state.steps + 1)
        last = state.steps == self.length
        right = jnp.where(last, state.umbrella == state.rain, noise[-1] == 1)
        observation = self._observation(state, noise[:-1])
        return state, transition(jnp.where(right, 1.0, -1.0), observation, last)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return dm_env.specs.BoundedArray((3 + self.distractors,), np.float32, 0, 1)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(2, name="action")

    render_fps = 2

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: sky, umbrella and remaining time; no distractors."""
        rain, picture = state.rain, drawing.canvas()
        picture = drawing.disc(picture, (0.5, 0.8), 0.12 * (1 - rain), drawing.YELLOW)
        picture = drawing.disc(picture, (0.5, 0.8), 0.12 * rain, drawing.BLUE)
        picture = drawing.disc(picture, (0.5, 0.4), 0.15 * state.umbrella, drawing.RED)
        left = 1 - state.steps / self.length
        return drawing.line(picture, (0, 0.05), (left, 0.05), 0.06, drawing.GREY)

    def _observation(self, state: State, noise: jax.Array) -> jax.Array:
        remaining = (self.length - state.steps) / self.length
        seen = jnp.stack([state.rain, state.umbrella, remaining])
        return jnp.concatenate([seen, noise.astype(jnp.float32)])
