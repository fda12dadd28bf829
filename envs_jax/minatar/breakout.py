"""MinAtar's Breakout: bounce a ball off a paddle, to break a wall of bricks above."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import (
    LEFT,
    NOOP,
    RIGHT,
    SIZE,
    Game,
    columns,
    mark,
    move,
    place,
    rows,
)

TOP, BOTTOM = 1, 3  # the wall's rows
WALL = (1 << 30) - 1  # all bricks, one bit each, row by row


class Breaking(NamedTuple):
    """All int32 [], except `striking`."""

    paddle: jax.Array  # column
    row: jax.Array  # of the ball
    column: jax.Array  # of the ball
    down: jax.Array  # 1 or -1, rows per step
    right: jax.Array  # 1 or -1, columns per step
    last_row: jax.Array  # of the ball, one step before
    last_column: jax.Array
    bricks: jax.Array  # 30 bits
    striking: jax.Array  # bool [], the ball hit a brick in the last step


@dataclasses.dataclass(frozen=True)
class Breakout(Game):
    """Each brick pays 1; the episode ends when the ball passes the paddle.

    The ball moves diagonally by one cell per step. If the paddle is not below the ball but
    where it is about to land, the ball returns the way it came. The wall is rebuilt when
    all bricks are gone and the ball is in the lowest row.
    """

    channels: ClassVar[tuple[str, ...]] = ("paddle", "ball", "trail", "brick")
    actions: ClassVar[tuple[int, ...]] = (NOOP, LEFT, RIGHT)

    def chance(self, words: jax.Array) -> jax.Array:
        """bool []: whether the ball starts at the right edge, rather than the left."""
        return words[0] & 1 == 1

    def begin(self, chance: jax.Array) -> Breaking:
        column = jnp.where(chance, jnp.int32(SIZE - 1), jnp.int32(0))
        right = jnp.where(chance, jnp.int32(-1), jnp.int32(1))
        row, down, wall = jnp.int32(3), jnp.int32(1), jnp.int32(WALL)
        return Breaking(
            jnp.int32(4), row, column, down, right, row, column, wall, jnp.bool_(False)
        )

    def play(
        self, game: Breaking, action: jax.Array, chance: jax.Array
    ) -> tuple[Breaking, jax.Array, jax.Array]:
        del chance  # used at the start only
        paddle = jnp.clip(game.paddle + move(action, LEFT, RIGHT), 0, SIZE - 1)
        row, free_column = game.row + game.down, game.column + game.right
        column = jnp.clip(free_column, 0, SIZE - 1)
        right = jnp.where(free_column == column, game.right, -game.right)

        ceiling = row < 0
        brick = _brick(row, column)
        met = game.bricks & brick != 0
        struck = met & ~game.striking  # else the ball passes through a second brick
        floor = row == SIZE - 1
        above, ahead = game.column == paddle, column == paddle
        caught = floor & (above | ahead)

        bricks = jnp.where(struck, game.bricks & ~brick, game.bricks)
        bricks = jnp.where(floor & (bricks == 0), WALL, bricks)
        turned = ceiling | struck | caught
        game = Breaking(
            paddle,
            jnp.where(struck | caught, game.row, jnp.maximum(row, 0)),
            column,
            jnp.where(turned, -game.down, game.down),
            jnp.where(caught & ~above, -right, right),
            game.row,
            game.column,
            bricks,
            met,
        )
        return game, jnp.float32(struck), floor & ~caught

    def cells(self, game: Breaking) -> jax.Array:
        return (
            mark(0, place(jnp.int32(SIZE - 1), game.paddle))
            | mark(1, place(game.row, game.column))
            | mark(2, place(game.last_row, game.last_column))
            | mark(3, game.bricks & _brick(rows(), columns()) != 0)
        )


def _brick(row: jax.Array, column: jax.Array) -> jax.Array:
    """int32: the bit of the brick in that cell, 0 outside the wall."""
    inside = (row >= TOP) & (row <= BOTTOM)
    return jnp.where(inside, 1 << jnp.where(inside, SIZE * (row - TOP) + column, 0), 0)
