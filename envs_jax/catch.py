"""Catch: move a paddle under a falling ball (bsuite, arXiv:1908.03568)."""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition


class State(NamedTuple):
    row: jax.Array  # int32 [], of the ball
    column: jax.Array  # int32 [], of the ball
    paddle: jax.Array  # int32 [], its column; its row is the last


@dataclasses.dataclass(frozen=True)
class Catch:
    """A ball falls one row a step; the paddle in the last row has to meet it.

    The ball starts in a random column, the paddle in the middle one. Actions are 0 left,
    1 stay, 2 right. The episode's only reward comes with LAST, after `rows - 1` steps:
    +1 if the ball lands on the paddle, else -1. The observation is the board, float32
    [rows, columns]: 1 at the ball and the paddle, else 0.
    """

    rows: int = 10
    columns: int = 5

    def __post_init__(self):
        if self.rows < 2 or self.columns < 1:
            raise ValueError(f"the board is {self}; it needs 2 rows and 1 column")

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        # Not randint, which hashes the key four times; this does so once.
        column = jnp.int32(self.columns * jax.random.uniform(key))
        state = State(jnp.int32(0), column, jnp.int32(self.columns // 2))
        return state, restart(self._board(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        paddle = jnp.clip(state.paddle + action - 1, 0, self.columns - 1)
        state = State(state.row + 1, state.column, paddle)
        landed = state.row == self.rows - 1
        reward = jnp.where(state.column == paddle, 1.0, -1.0) * landed
        return state, transition(reward, self._board(state), landed)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        shape = (self.rows, self.columns)
        return dm_env.specs.BoundedArray(shape, np.float32, 0, 1, "board")

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(3, name="action")

    render_fps = 5

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: yellow ball, white paddle; at the end a green or red ball."""
        ball, paddle = self._places(state)
        caught = state.column == state.paddle
        landed = jnp.where(caught, 3, 4)  # its place in the palette
        shown = jnp.where(state.row == self.rows - 1, landed, 2)
        palette = (
            drawing.BLACK,
            drawing.WHITE,
            drawing.YELLOW,
            drawing.GREEN,
            drawing.RED,
        )
        return drawing.cells(jnp.where(ball, shown, paddle), palette)

    def _board(self, state: State) -> jax.Array:
        ball, paddle = self._places(state)
        return jnp.float32(ball | paddle)

    def _places(self, state: State) -> tuple[jax.Array, jax.Array]:
        """The ball's and the paddle's cells, bool [rows, columns] each."""
        rows = jnp.arange(self.rows)[:, None]
        columns = jnp.arange(self.columns)[None, :]
        ball = (rows == state.row) & (columns == state.column)
        paddle = (rows == self.rows - 1) & (columns == state.paddle)
        return ball, paddle
