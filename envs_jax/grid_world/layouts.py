"""Random layouts of grid worlds, distributed as MiniGrid's (arXiv:2306.13831, table 1).

Each function takes the random numbers that it needs, float32 [n] uniform in [0, 1), and
returns the initial State. Generating random words is most of the cost of a reset.
"""

import jax
import jax.numpy as jnp

from envs_jax.grid_world.squares import (
    FIXED_BALL,
    FIXED_KEY,
    FLOOR,
    GOAL,
    KEY,
    LOCKED,
    PRIZE,
    RIGHT,
    TRAP,
    WALL,
    State,
    at,
    coordinates,
    put,
)


def empty(numbers: jax.Array, size: int, random_start: bool) -> State:
    """A goal in one corner; the agent in the opposite one, or anywhere. 2 numbers."""
    grid = put(_room(size), at((size, size), size - 2, size - 2), GOAL)
    if not random_start:
        return _start(grid, jnp.int32(1), jnp.int32(1), jnp.int32(RIGHT))
    agent = _choose(numbers[0], grid == FLOOR)
    return _start(grid, *agent, _below(numbers[1], 4))


def four_rooms(numbers: jax.Array, size: int) -> State:
    """Four rooms with a gap in each wall; agent and goal anywhere. 7 numbers."""
    half = size // 2
    rows, columns = coordinates((size, size))
    grid = put(_room(size), (rows == half) | (columns == half), WALL)
    for i, wall_start in enumerate((0, half)):
        down, right = (
            wall_start + 1 + _below(n, half - 1) for n in numbers[i : i + 3 : 2]
        )
        grid = put(grid, at(grid.shape, down, half), FLOOR)
        grid = put(grid, at(grid.shape, half, right), FLOOR)
    goal = _choose(numbers[4], grid == FLOOR)
    grid = put(grid, at(grid.shape, *goal), GOAL)
    agent = _choose(numbers[5], grid == FLOOR)
    return _start(grid, *agent, _below(numbers[6], 4))


def door_key(numbers: jax.Array, size: int) -> State:
    """A wall with a locked door; agent and key to its left, the goal right. 5 numbers."""
    rows, columns = coordinates((size, size))
    wall = 2 + _below(numbers[0], size - 4)
    door = 1 + _below(numbers[1], size - 3)
    grid = put(_room(size), columns == wall, WALL)
    grid = put(grid, (rows == door) & (columns == wall), LOCKED)
    agent = _choose(numbers[2], (grid == FLOOR) & (columns < wall))
    elsewhere = ~at(grid.shape, *agent)
    key = _choose(numbers[3], (grid == FLOOR) & (columns < wall) & elsewhere)
    grid = put(grid, at(grid.shape, *key), KEY)
    grid = put(grid, at(grid.shape, size - 2, size - 2), GOAL)
    return _start(grid, *agent, _below(numbers[4], 4))


def memory(numbers: jax.Array, size: int, random_length: bool) -> State:
    """A room with a cue, a hallway, and a fork with both objects. 4 numbers."""
    middle, shape = size // 2, (size, size)
    rows, columns = coordinates(shape)
    end = 4 + _below(numbers[0], size - 6) if random_length else jnp.int32(size - 3)
    aside = abs(rows - middle)  # from the hallway
    room = ((aside == 2) & (columns < 5)) | ((aside == 1) & (columns == 4))
    hallway = (aside == 1) & (columns > 4) & (columns < end)
    fork = ((columns == end) & (aside > 0)) | (columns == end + 2)
    grid = put(_room(size), room | hallway | fork, WALL)

    agent = 1 + _below(numbers[1], end)
    cue = jnp.where(numbers[2] < 0.5, FIXED_KEY, FIXED_BALL)
    upper = jnp.where(numbers[3] < 0.5, FIXED_KEY, FIXED_BALL)
    lower = FIXED_KEY + FIXED_BALL - upper
    for row, square in (
        (middle - 2, upper),
        (middle - 1, jnp.where(upper == cue, PRIZE, TRAP)),
        (middle + 1, jnp.where(lower == cue, PRIZE, TRAP)),
        (middle + 2, lower),
    ):
        grid = put(grid, at(shape, row, end + 1), square)
    grid = put(grid, at(shape, middle - 1, 1), cue)
    return _start(grid, jnp.int32(middle), agent, jnp.int32(RIGHT))


def _room(size: int) -> jax.Array:
    """uint8 [size, size], floor surrounded by a wall."""
    rows, columns = coordinates((size, size))
    edge = (rows % (size - 1) == 0) | (columns % (size - 1) == 0)
    return jnp.where(edge, jnp.uint8(WALL), jnp.uint8(FLOOR))


def _start(grid, row, column, direction) -> State:
    return State(grid, row, column, direction, jnp.uint8(FLOOR), jnp.int32(0))


def _below(number: jax.Array, count: jax.Array | int) -> jax.Array:
    """int32 [], 0 to count - 1."""
    return jnp.int32(number * count)


def _choose(number: jax.Array, free: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Row and column of a uniformly random square among those that are `free` [H, W]."""
    # First the row, then the column: cumulative sums over all squares are slow on a CPU.
    in_rows = jnp.sum(free, axis=1)
    nth = _below(number, jnp.sum(in_rows))
    row = jnp.sum(_cumulative_sum(in_rows) <= nth)
    rows, _ = coordinates(free.shape)
    nth -= jnp.sum(jnp.where(rows[:, 0] < row, in_rows, 0))
    column = jnp.sum(_cumulative_sum(jnp.any(free & (rows == row), axis=0)) <= nth)
    return row, column


def _cumulative_sum(counts: jax.Array) -> jax.Array:
    """int32 [N], the cumulative sum."""
    number = jnp.arange(counts.shape[0])
    return jnp.sum(jnp.where(number[None] <= number[:, None], counts[None], 0), axis=1)
