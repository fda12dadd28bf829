"""Pictures of grid worlds."""

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.grid_world import squares
from envs_jax.grid_world.squares import State

TILE = 8  # pixels, width and height
RED, GREEN, YELLOW = (255, 0, 0), (0, 255, 0), (255, 255, 0)
GREY, DARK = (100, 100, 100), (40, 40, 40)


def render(state: State) -> jax.Array:
    """uint8 [8 * H, 8 * W, 3], the whole grid; the agent is a red triangle."""
    tiles = jnp.asarray(_tiles())[squares.looks(state.grid)]  # [H, W, 8, 8, 3]
    agent = squares.at(state.grid.shape, state.row, state.column)
    arrow = agent[..., None, None] & jnp.asarray(_arrows())[state.direction][None, None]
    tiles = jnp.where(arrow[..., None], np.uint8(RED)[None, None, None, None], tiles)
    height, width = state.grid.shape
    pixels = tiles.transpose(0, 2, 1, 3, 4)
    return pixels.reshape(TILE * height, TILE * width, 3)


def _tiles() -> np.ndarray:
    """uint8 [8, 8, 8, 3], one tile for each appearance of a square."""
    y, x = np.mgrid[:TILE, :TILE] - (TILE - 1) / 2
    frame = np.maximum(abs(x), abs(y)) > 3
    whole = np.ones_like(frame)
    shaft = (abs(x) < 1) & (y > -3) & (y < 3.5)
    key = (np.hypot(x, y + 1.5) < 2) | shaft | ((x > 0) & (x < 3) & (y == 2.5))
    shapes = {
        squares.FLOOR: (np.zeros_like(frame), DARK),
        squares.WALL: (whole, GREY),
        squares.GOAL: (whole, GREEN),
        squares.KEY: (key, YELLOW),
        squares.BALL: (np.hypot(x, y) < 3, GREEN),
        squares.OPEN: (frame, YELLOW),
        squares.CLOSED: (frame | ((abs(y) < 1) & (x > 1)), YELLOW),
        squares.LOCKED: (~((abs(x) < 1) & (abs(y) < 2)), YELLOW),
    }
    grout = (x == x.min()) | (y == y.min())  # so that squares can be counted
    tiles = np.uint8(DARK) * np.uint8(grout)[None, ..., None]
    return np.concatenate(
        [np.where(shape[..., None], np.uint8(c), tiles) for shape, c in shapes.values()]
    )


def _arrows() -> np.ndarray:
    """bool [4, 8, 8], the agent's pixels in each direction."""
    y, x = np.mgrid[:TILE, :TILE] - (TILE - 1) / 2
    points_right = (x > -3) & (2 * abs(y) < 3.5 - x)
    return np.stack([np.rot90(points_right, -turns) for turns in range(4)])
