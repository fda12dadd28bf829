"""The agent's view of a grid world: the 7 x 7 squares before it (arXiv:2306.13831)."""

import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.grid_world import squares
from envs_jax.grid_world.squares import LOOKS, State

SIZE = 7  # squares, in width and in depth
MIDDLE, NEAREST = SIZE // 2, SIZE - 1  # the agent's own column and row in its view
SHAPE = (SIZE, SIZE, LOOKS + 4)
SPEC = dm_env.specs.BoundedArray(SHAPE, np.float32, 0, 1, "view")


def view(state: State, see_through: bool) -> jax.Array:
    """float32 [7, 7, 12]; ahead is up, and the agent is in the middle of the last row.

    Planes 0 to 7 are a one-hot code of each square's appearance (`squares.FLOOR` to
    `LOCKED`), all 0 where the agent sees nothing; an object that it carries is shown on its
    own square. Planes 8 to 11 are a one-hot code of its direction: right, down, left, up.
    """
    before = _squares_before(state)
    own = np.arange(SIZE**2).reshape(SIZE, SIZE) == NEAREST * SIZE + MIDDLE
    shown = squares.looks(squares.put(before, own, state.carried))
    planes = shown[..., None] == jnp.arange(LOOKS, dtype=jnp.uint8)[None, None]
    if not see_through:
        planes &= _sight(~squares.blocks_sight(before))[..., None]
    direction = state.direction == jnp.arange(4)
    direction = jnp.broadcast_to(direction, (SIZE, SIZE, 4))
    return jnp.float32(jnp.concatenate([planes, direction], axis=-1))


def _squares_before(state: State) -> jax.Array:
    """uint8 [7, 7], rotated to the agent's direction; outside the grid is wall."""
    height, width = state.grid.shape
    forward, aside = NEAREST - np.arange(SIZE)[:, None], np.arange(SIZE)[None] - MIDDLE
    down, right = squares.ahead(state.direction)
    # An agent that faces (down, right) has (right, -down) on its right hand.
    rows = state.row + forward * down + aside * right
    columns = state.column + forward * right - aside * down
    inside = (0 <= rows) & (rows < height) & (0 <= columns) & (columns < width)
    before = jnp.take(state.grid.ravel(), rows * width + columns, mode="clip")
    return squares.put(before, ~inside, squares.WALL)


def _sight(clear: jax.Array) -> jax.Array:
    """bool [7, 7], the visible squares, if only `clear` [7, 7] squares let sight pass.

    MiniGrid's rule, from the agent's row to the farthest: sight spreads along a row over
    the clear squares next to those already seen, and from each of them to its neighbours
    on both sides and to the three squares ahead of these. A row is an integer with one bit
    per square, which is much cheaper than arrays.
    """
    bits = np.arange(SIZE)
    clear_rows = jnp.sum(clear << bits[None], axis=1)
    lit, seen = 1 << MIDDLE, []
    spread = jnp.asarray(_spread())
    for row in reversed(range(SIZE)):
        source = spread[(lit % (1 << SIZE)) << SIZE | clear_rows[row]]
        around = source | source << 1 | source >> 1
        seen.append(lit | around)
        lit = around
    return (jnp.stack(seen[::-1])[:, None] >> bits[None]) % 2 == 1


@functools.cache
def _spread() -> np.ndarray:
    """int32 [2^7 * 2^7]: maps `lit << 7 | clear` to the clear squares reached by sight.

    A table, because XLA would recompute the early iterations of a loop for each later one.
    """
    lit, clear = np.divmod(np.arange(1 << 2 * SIZE, dtype=np.int32), 1 << SIZE)
    source = lit & clear
    for _ in range(SIZE - 1):
        source |= (source << 1 | source >> 1) & clear
    return source
