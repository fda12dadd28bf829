"""The contents of a grid world's squares, and their effects on the agent."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# A square is a uint8. Its low three bits are its appearance:
FLOOR, WALL, GOAL, KEY, BALL, OPEN, CLOSED, LOCKED = range(8)
LOOKS = 8
# The bits above are invisible: the object is fixed, or the square ends the episode.
FIXED_KEY, FIXED_BALL = KEY + LOOKS, BALL + LOOKS
PRIZE, TRAP = FLOOR + LOOKS, FLOOR + 2 * LOOKS

# Directions are 0 right, 1 down, 2 left, 3 up: clockwise.
RIGHT, DOWN, LEFT, UP = range(4)


class State(NamedTuple):
    grid: jax.Array  # uint8 [H, W], squares, surrounded by a wall
    row: jax.Array  # int32 [], of the agent
    column: jax.Array  # int32 [], of the agent
    direction: jax.Array  # int32 [], the direction it faces
    carried: jax.Array  # uint8 [], a KEY or BALL, or FLOOR for nothing
    steps: jax.Array  # int32 [], since FIRST


def is_any(squares: jax.Array, *kinds: int) -> jax.Array:
    """bool [...], whether a square is exactly one of these kinds."""
    is_one = squares == kinds[0]
    for kind in kinds[1:]:
        is_one |= squares == kind
    return is_one


def looks(squares: jax.Array) -> jax.Array:
    return squares % LOOKS


def walkable(squares: jax.Array) -> jax.Array:
    return is_any(looks(squares), FLOOR, GOAL, OPEN)


def blocks_sight(squares: jax.Array) -> jax.Array:
    return is_any(looks(squares), WALL, CLOSED, LOCKED)


def toggled(square: jax.Array, carried: jax.Array) -> jax.Array:
    """Opens or closes a door; a locked one opens if a key is carried, which is kept."""
    opens = (square == CLOSED) | ((square == LOCKED) & (carried == KEY))
    closed = jnp.where(square == OPEN, jnp.uint8(CLOSED), square)
    return jnp.where(opens, jnp.uint8(OPEN), closed)


def ahead(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The change of row and column, -1 to 1 each, of one step forward."""
    down = is_any(direction, DOWN).astype(jnp.int32) - is_any(direction, UP)
    right = is_any(direction, RIGHT).astype(jnp.int32) - is_any(direction, LEFT)
    return down, right


def at(shape: tuple[int, int], row: jax.Array, column: jax.Array) -> jax.Array:
    """bool [H, W], true at this square only."""
    rows, columns = coordinates(shape)
    return (rows == row) & (columns == column)


def coordinates(shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Row and column indices that broadcast, int32 [H, 1] and [1, W]."""
    return jnp.arange(shape[0])[:, None], jnp.arange(shape[1])[None, :]


def put(grid: jax.Array, where: jax.Array, square: jax.Array | int) -> jax.Array:
    """The grid with `square` wherever `where` [H, W] is true."""
    return jnp.where(where, jnp.asarray(square, jnp.uint8), grid)
