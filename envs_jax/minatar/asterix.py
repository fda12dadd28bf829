"""MinAtar's Asterix: collect the gold that crosses the board, avoid the enemies."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import (
    DOWN,
    LEFT,
    NOOP,
    RIGHT,
    SIZE,
    UP,
    Game,
    any_of,
    columns,
    count,
    digits,
    mark,
    move,
    place,
)

LANES = 8  # rows 1 to 8, at most one object in each
FIRST_ROW = 1
SPAWN_INTERVAL, MOVE_INTERVAL = 10, 5  # steps, at the start of an episode
RAMP_INTERVAL = 100  # timer between two increases of speed, in steps
AWAY = -1  # the column of an object that does not exist
PLACES = 840  # divisible by 1 to 8: a fair choice among any number of free lanes


class Chance(NamedTuple):
    """Properties of the next object: all int32 []."""

    right: jax.Array  # 1 if it moves to the right
    kind: jax.Array  # 0 is gold, 1 and 2 an enemy
    lane: jax.Array  # below 840, selects one of the free lanes


class Things(NamedTuple):
    """One object per lane; all [8]."""

    column: jax.Array  # int32, or AWAY
    right: jax.Array  # int32, 1 or -1: columns per move
    gold: jax.Array  # bool, otherwise an enemy


class Collecting(NamedTuple):
    """All int32 [], except `things`."""

    row: jax.Array  # of the player
    column: jax.Array
    things: Things
    spawn_timer: jax.Array  # steps
    spawn_interval: jax.Array
    move_timer: jax.Array
    move_interval: jax.Array
    ramp_timer: jax.Array
    ramps: jax.Array  # number of speed increases so far


@dataclasses.dataclass(frozen=True)
class Asterix(Game):
    """Gold pays 1; the episode ends when an enemy touches the player.

    Objects enter at one side and leave at the other; with `ramping` they appear and move
    faster and faster.
    """

    ramping: bool = True

    channels: ClassVar[tuple[str, ...]] = ("player", "enemy", "trail", "gold")
    actions: ClassVar[tuple[int, ...]] = (NOOP, LEFT, UP, RIGHT, DOWN)
    words: ClassVar[int] = 2

    def chance(self, words: jax.Array) -> Chance:
        return Chance(*digits(words[1], 2, 3, PLACES))

    def begin(self, chance: Chance) -> Collecting:
        del chance
        away, right = jnp.full(LANES, AWAY, jnp.int32), jnp.ones(LANES, jnp.int32)
        things = Things(away, right, jnp.zeros(LANES, bool))
        numbers = (SPAWN_INTERVAL,) * 2 + (MOVE_INTERVAL,) * 2 + (RAMP_INTERVAL, 0)
        return Collecting(jnp.int32(5), jnp.int32(5), things, *map(jnp.int32, numbers))

    def play(
        self, game: Collecting, action: jax.Array, chance: Chance
    ) -> tuple[Collecting, jax.Array, jax.Array]:
        due = game.spawn_timer == 0
        spawn_timer = jnp.where(due, game.spawn_interval, game.spawn_timer)
        things = _spawn(game.things, chance, due)

        row = jnp.clip(game.row + move(action, UP, DOWN), FIRST_ROW, LANES)
        column = jnp.clip(game.column + move(action, LEFT, RIGHT), 0, SIZE - 1)
        here = count(LANES) == row - FIRST_ROW
        things, met, hurt = _touch(things, here, column)

        due = game.move_timer == 0
        move_timer = jnp.where(due, game.move_interval, game.move_timer)
        things = things._replace(column=jnp.where(due, _moved(things), things.column))
        things, met_again, hurt_again = _touch(things, here, column)

        game = game._replace(row=row, column=column, things=things)
        game = game._replace(spawn_timer=spawn_timer - 1, move_timer=move_timer - 1)
        reward = jnp.float32(met) + jnp.float32(met_again)
        return self._ramp(game), reward, hurt | hurt_again

    def cells(self, game: Collecting) -> jax.Array:
        column, right, gold = (leaf[:, None] for leaf in game.things)
        lanes = jnp.where(column == columns(), jnp.where(gold, 1 << 3, 1 << 1), 0)
        lanes |= mark(2, (column - right == columns()) & (column != AWAY))
        player = mark(0, place(game.row, game.column))
        return player | jnp.pad(lanes, ((FIRST_ROW, FIRST_ROW), (0, 0)))

    def _ramp(self, game: Collecting) -> Collecting:
        spawn, steps = game.spawn_interval, game.move_interval
        ramping = ((spawn > 1) | (steps > 1)) & self.ramping
        now = ramping & (game.ramp_timer < 0)
        faster = now & (steps > 1) & (game.ramps % 2 == 1)
        timer = jnp.where(now, RAMP_INTERVAL, game.ramp_timer - ramping)
        return game._replace(
            spawn_interval=spawn - (now & (spawn > 1)),
            move_interval=steps - faster,
            ramp_timer=timer,
            ramps=game.ramps + now,
        )


def _spawn(things: Things, chance: Chance, due: jax.Array) -> Things:
    """Adds an object to a free lane, if one is due and a lane is free."""
    free = things.column == AWAY
    bit = 1 << count(LANES)
    lanes = any_of(jnp.where(free, bit, 0))
    rank = jax.lax.population_count(lanes & (bit - 1))  # among the free lanes
    chosen = chance.lane * jax.lax.population_count(lanes) // PLACES
    new = due & free & (rank == chosen)
    right = jnp.where(chance.right == 1, 1, -1)
    return Things(
        jnp.where(new, jnp.where(chance.right == 1, 0, SIZE - 1), things.column),
        jnp.where(new, right, things.right),
        jnp.where(new, chance.kind == 0, things.gold),
    )


def _moved(things: Things) -> jax.Array:
    """int32 [8]: the columns after a move, or AWAY."""
    column = things.column + things.right
    inside = (things.column != AWAY) & (column >= 0) & (column < SIZE)
    return jnp.where(inside, column, AWAY)


def _touch(
    things: Things, here: jax.Array, column: jax.Array
) -> tuple[Things, jax.Array, jax.Array]:
    """Takes gold from the player's cell; whether any was there; whether an enemy is."""
    met = here & (things.column == column)
    taken = met & things.gold
    left = things._replace(column=jnp.where(taken, AWAY, things.column))
    return left, taken.any(), (met & ~things.gold).any()
