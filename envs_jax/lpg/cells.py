"""The free cells of a map: their indices, their neighbours, random samples of them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.environment import Key


class Grid(NamedTuple):
    """A map; its P free cells are indexed from 0, row by row."""

    shape: tuple[int, int]  # rows, columns
    places: np.ndarray  # int32 [P], index of each free cell in the flattened map
    beside: np.ndarray  # int32 [P, 9], the neighbour in each direction; -1 is a wall


DIRECTIONS = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]


@functools.cache
def grid(rows: tuple[str, ...]) -> Grid:
    """The map with these rows, in which "." is a free cell."""
    free = np.pad(np.array([[cell == "." for cell in row] for row in rows]), 1)
    number = np.where(free, free.cumsum().reshape(free.shape) - 1, -1).astype(np.int32)
    down, right = np.nonzero(free)
    beside = np.stack([number[down + i, right + j] for i, j in DIRECTIONS], axis=1)
    shape = len(rows), len(rows[0])
    places = (down - 1) * shape[1] + right - 1
    return Grid(shape, places.astype(np.int32), beside)


def draw_cells(key: Key, count: int, taken: jax.Array, total: int) -> jax.Array:
    """Distinct cells, int32 [count], uniform over those that are not taken.

    Args:
      key: provides 16 bits for each cell.
      count: the number of cells to draw; at least that many must be free.
      taken: int32 [N], distinct cells; entries equal to `total` are ignored.
      total: the number of cells.
    """
    words = jax.random.bits(key, (-(-count // 2),), jnp.uint32)
    chances = words.view(jnp.uint16)[:count] / 2**16
    left = total - jnp.sum(taken < total)
    for chance in chances:
        nth = cell = jnp.int32(chance * left)  # among the remaining ones
        for _ in range(len(taken)):  # each round skips one more taken cell, or none
            cell = nth + jnp.sum(taken <= cell)
        taken, left = jnp.append(taken, cell), left - 1
    return taken[-count:]
