"""Memory chain: remember the first observation (bsuite's memory_len, arXiv:1908.03568)."""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition


class State(NamedTuple):
    bit: jax.Array  # int32 [], to be remembered
    steps: jax.Array  # int32 [], since FIRST


@dataclasses.dataclass(frozen=True)
class MemoryChain:
    """A bit is shown at FIRST only; the last of `length` actions must be equal to it.

    The only reward comes at LAST: +1 if they are equal, else -1. The observation is
    float32 [2]: the fraction of the episode that remains, from 1 to 0, and the cue, -1 or 1
    for the bit at FIRST and 0 afterwards. Only the bit needs to be remembered; without
    memory, and if `length` is at least 2, the mean return of every policy is 0.
    """

    length: int = 5

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f"length is {self.length}; it must be at least 1")

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        state = State(jnp.int32(jax.random.bernoulli(key)), jnp.int32(0))
        return state, restart(self._observation(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        state = State(state.bit, state.steps + 1)
        last = state.steps == self.length
        reward = jnp.where(action == state.bit, 1.0, -1.0) * last
        return state, transition(reward, self._observation(state), last)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return dm_env.specs.BoundedArray((2,), np.float32, [0, -1], 1)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(2, name="action")

    render_fps = 2

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the bit (right for 1, a ring once hidden), remaining time."""
        bit, begun = (0.3 + 0.4 * state.bit, 0.6), state.steps > 0
        picture = drawing.disc(drawing.canvas(), bit, 0.15, drawing.GREEN)
        picture = drawing.disc(picture, bit, 0.12 * begun, drawing.WHITE)
        left = 1 - state.steps / self.length
        return drawing.line(picture, (0, 0.05), (left, 0.05), 0.06, drawing.GREY)

    def _observation(self, state: State) -> jax.Array:
        remaining = (self.length - state.steps) / self.length
        cue = jnp.where(state.steps == 0, 2.0 * state.bit - 1, 0.0)
        return jnp.stack([remaining, cue])
