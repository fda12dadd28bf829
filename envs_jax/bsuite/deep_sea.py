"""Deep sea: a chain on which exploration at random fails (bsuite, arXiv:1908.03568)."""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition


class State(NamedTuple):
    row: jax.Array  # int32 [], size at LAST
    column: jax.Array  # int32 []


@dataclasses.dataclass(frozen=True)
class DeepSea:
    """A diver sinks one of `size` rows a step, and moves one column to the left or right.

    Only moving right in every step reaches the treasure, which pays 1 at LAST; each move to
    the right costs 0.01 / size. So the optimal return is 0.99, and random actions find the
    treasure in one of 2^size episodes. Nothing is random: which of the two actions leads to
    the right is drawn once for each cell, from `mapping_seed`. The observation is float32
    [size, size], 1 at the diver and 0 elsewhere; at LAST it is 0 everywhere.
    """

    size: int = 8
    mapping_seed: int = 42

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size is {self.size}; it must be at least 1")
        if self.mapping_seed < 0:
            raise ValueError(
                f"mapping_seed is {self.mapping_seed}; it must be at least 0"
            )

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        del key  # every episode begins at the top left
        state = State(jnp.int32(0), jnp.int32(0))
        return state, restart(self._observation(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key
        row, column = state
        right = action == jnp.asarray(self._rights())[row, column]
        treasure = right & (column == self.size - 1)
        reward = 1.0 * treasure - 0.01 / self.size * right
        moved = jnp.clip(column + jnp.where(right, 1, -1), 0, self.size - 1)
        state = State(row + 1, moved)
        last = state.row == self.size
        return state, transition(reward, self._observation(state), last)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return dm_env.specs.BoundedArray((self.size, self.size), np.float32, 0, 1)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(2, name="action")

    render_fps = 4

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the diver, and the treasure at the bottom right."""
        cell = 1 / self.size
        treasure, diver = (1 - cell / 2, cell / 2), self._place(state)
        picture = drawing.disc(drawing.canvas(), treasure, 0.4 * cell, drawing.YELLOW)
        return drawing.disc(picture, diver, 0.3 * cell, drawing.BLUE)

    def _rights(self) -> np.ndarray:
        """int32 [size, size]: the action that leads to the right."""
        draw = np.random.default_rng(self.mapping_seed)
        return draw.integers(0, 2, (self.size, self.size), dtype=np.int32)

    def _place(self, state: State) -> tuple[jax.Array, jax.Array]:
        row = jnp.minimum(state.row, self.size - 1)  # where the dive ended, at LAST
        return (state.column + 0.5) / self.size, 1 - (row + 0.5) / self.size

    def _observation(self, state: State) -> jax.Array:
        row = jax.nn.one_hot(
            state.row, self.size, dtype=jnp.float32
        )  # 0 everywhere at LAST
        column = jax.nn.one_hot(state.column, self.size, dtype=jnp.float32)
        return jnp.outer(row, column)
