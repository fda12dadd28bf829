"""MinAtar's Space Invaders: shoot the aliens before they land or hit the cannon."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import (
    FIRE,
    LEFT,
    NOOP,
    RIGHT,
    SIZE,
    Game,
    any_of,
    columns,
    count,
    mark,
    move,
    place,
)

GROUND = SIZE - 1  # the cannon's row
WAVE_ROWS, WAVE_ROW = 4, 0b0011111100  # one bit per column
RELOAD = 5  # steps between two shots of the cannon
SHOT_INTERVAL = 10  # steps between two shots of the aliens
MOVE_INTERVAL, LEAST_INTERVAL = 12, 6  # steps between two moves of a full wave


class Invading(NamedTuple):
    """A board is int32 [10], one entry per row; bit 0 is column 0. Others are int32 []."""

    column: jax.Array  # of the cannon
    aliens: jax.Array  # board
    shots: jax.Array  # board, shots of the cannon
    bombs: jax.Array  # board, shots of the aliens
    right: jax.Array  # 1 or -1: columns per move of the aliens
    reload_timer: jax.Array  # steps until the cannon can shoot
    move_timer: jax.Array  # steps until the aliens move
    bomb_timer: jax.Array  # steps until one of them shoots
    interval: jax.Array  # steps between two moves while many aliens are left


@dataclasses.dataclass(frozen=True)
class SpaceInvaders(Game):
    """Each alien pays 1; the episode ends when one lands or hits the cannon.

    The fewer are left the faster they move; when all are shot the next wave appears, a
    faster one with `ramping`. Only sticky actions are random.
    """

    ramping: bool = True

    channels: ClassVar[tuple[str, ...]] = (
        "cannon",
        "alien",
        "alien_left",
        "alien_right",
    ) + ("friendly_bullet", "enemy_bullet")
    actions: ClassVar[tuple[int, ...]] = (NOOP, LEFT, RIGHT, FIRE)

    def chance(self, words: jax.Array) -> tuple[()]:
        del words
        return ()

    def begin(self, chance: tuple[()]) -> Invading:
        del chance
        empty = jnp.zeros(SIZE, jnp.int32)
        numbers = -1, 0, MOVE_INTERVAL, SHOT_INTERVAL, MOVE_INTERVAL
        boards = _wave(), empty, empty
        return Invading(jnp.int32(5), *boards, *map(jnp.int32, numbers))

    def play(
        self, game: Invading, action: jax.Array, chance: tuple[()]
    ) -> tuple[Invading, jax.Array, jax.Array]:
        del chance
        fire = (action == FIRE) & (game.reload_timer == 0)
        column = jnp.clip(game.column + move(action, LEFT, RIGHT), 0, GROUND)
        cannon = 1 << column
        shot = jnp.where(fire, cannon, 0)
        shots = jnp.concatenate([game.shots[1:GROUND], jnp.stack([shot, 0])])
        bombs = jnp.concatenate([jnp.zeros(1, jnp.int32), game.bombs[:GROUND]])
        over = (bombs[GROUND] | game.aliens[GROUND]) & cannon != 0

        aliens, right, landed = _march(game)
        moved = game.move_timer == 0
        over |= landed | (moved & (aliens[GROUND] & cannon != 0))
        bombing = game.bomb_timer == 0
        bombs |= jnp.where(bombing, _bomb(aliens, column), 0)

        killed = aliens & shots
        aliens &= ~killed
        won = (aliens == 0).all()
        faster = won & (game.interval > LEAST_INTERVAL) & self.ramping
        pause = jnp.minimum(_number(game.aliens), game.interval)
        game = Invading(
            column,
            jnp.where(won, _wave(), aliens),
            shots & ~killed,
            bombs,
            right,
            jnp.maximum(jnp.where(fire, RELOAD, game.reload_timer) - 1, 0),
            jnp.where(moved, pause, game.move_timer) - 1,
            jnp.where(bombing, SHOT_INTERVAL, game.bomb_timer) - 1,
            game.interval - faster,
        )
        return game, jnp.float32(_number(killed)), over

    def cells(self, game: Invading) -> jax.Array:
        aliens, shots, bombs = (
            rows[:, None] >> columns() & 1
            for rows in (game.aliens, game.shots, game.bombs)
        )
        alien = jnp.where(game.right < 0, 0b0110, 0b1010)
        cannon = mark(0, place(jnp.int32(GROUND), game.column))
        return cannon | aliens * alien | shots << 4 | bombs << 5


def _number(board: jax.Array) -> jax.Array:
    """int32 []: the number of objects on a board."""
    return jax.lax.population_count(board).sum(dtype=jnp.int32)


def _wave() -> jax.Array:
    return jnp.where(count(SIZE) < WAVE_ROWS, jnp.int32(WAVE_ROW), 0)


def _march(game: Invading) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The aliens after a move, if one is due, their direction, and whether they landed.

    They move by one column; at the edge they move down by one row and turn around.
    """
    due = game.move_timer == 0
    ahead = jnp.where(game.right < 0, 1, 1 << SIZE - 1)
    turn = due & (any_of(game.aliens) & ahead != 0)
    aside = jnp.where(game.right < 0, game.aliens >> 1, game.aliens << 1)
    moved = jnp.where(turn, jnp.roll(game.aliens, 1), aside)
    aliens = jnp.where(due, moved, game.aliens)
    landed = turn & (game.aliens[GROUND] != 0)
    return aliens, jnp.where(turn, -game.right, game.right), landed


def _bomb(aliens: jax.Array, column: jax.Array) -> jax.Array:
    """int32 [10]: the lowest alien in the column nearest to the cannon; of two, the left."""
    line = count(SIZE)
    occupied = any_of(aliens) >> line & 1 == 1
    order = 2 * jnp.abs(line - column) + (line > column)
    first = jnp.where(occupied, order, 2 * SIZE).min()
    nearest = column + jnp.where(first % 2 == 1, first // 2, -(first // 2))
    bit = 1 << jnp.clip(nearest, 0, SIZE - 1)
    lowest = jnp.where(aliens & bit != 0, line, -1).max()
    return jnp.where(line == lowest, bit, 0)
