"""MinAtar's Freeway: a chicken repeatedly crosses eight lanes of cars."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import (
    DOWN,
    NOOP,
    SIZE,
    UP,
    Game,
    columns,
    count,
    digits,
    mark,
    move,
    place,
)

LANES = 8  # rows 1 to 8, one car in each
FIRST_ROW = 1
SPEEDS = 5  # a car moves every 2 to 6 steps
HOME, GOAL = SIZE - 1, 0  # the chicken's rows
COLUMN = 4  # of the chicken
REST = 3  # steps between two moves of the chicken
STEPS = 2_500  # the episode ends one step later


class Crossing(NamedTuple):
    row: jax.Array  # int32 [], of the chicken
    rest: jax.Array  # int32 [], steps until it can move again
    steps_left: jax.Array  # int32 []
    column: jax.Array  # int32 [8], of the cars
    pause: jax.Array  # int32 [8], 1 to 5: steps that a car waits between moves
    right: jax.Array  # int32 [8], 1 or -1: columns per move
    timer: jax.Array  # int32 [8], steps until the car moves


@dataclasses.dataclass(frozen=True)
class Freeway(Game):
    """A crossing pays 1 and gives all cars new speeds.

    A chicken that meets a car starts again. The episode terminates, rather than being
    truncated, at step 2,501: MinAtar's clock runs down to -1.
    """

    channels: ClassVar[tuple[str, ...]] = ("chicken", "car") + (
        "speed1",
        "speed2",
        "speed3",
        "speed4",
        "speed5",
    )
    actions: ClassVar[tuple[int, ...]] = (NOOP, UP, DOWN)
    words: ClassVar[int] = 3

    def chance(self, words: jax.Array) -> tuple[jax.Array, jax.Array]:
        """int32 [8] each: pauses, 1 to 5, and directions, 1 or -1."""
        # Half the cars per word: with more, the last speeds would not be uniform enough.
        numbers = digits(words[1], *(10,) * 4) + digits(words[2], *(10,) * 4)
        numbers = jnp.stack(numbers)
        return 1 + numbers % SPEEDS, jnp.where(numbers < SPEEDS, 1, -1)

    def begin(self, chance: tuple[jax.Array, jax.Array]) -> Crossing:
        pause, right = chance
        numbers = map(jnp.int32, (HOME, REST, STEPS))
        return Crossing(*numbers, jnp.zeros(LANES, jnp.int32), pause, right, pause)

    def play(
        self, game: Crossing, action: jax.Array, chance: tuple[jax.Array, jax.Array]
    ) -> tuple[Crossing, jax.Array, jax.Array]:
        step = jnp.where(game.rest == 0, move(action, UP, DOWN), 0)
        row = jnp.clip(game.row + step, GOAL, HOME)
        rest = jnp.where(step != 0, REST, game.rest)

        crossed = row == GOAL
        row = jnp.where(crossed, HOME, row)
        pause = jnp.where(crossed, chance[0], game.pause)
        right = jnp.where(crossed, chance[1], game.right)
        timer = jnp.where(crossed, pause, game.timer)

        due = timer == 0
        column = jnp.where(due, _around(game.column + right), game.column)
        near = (game.column == COLUMN) | (column == COLUMN)  # before or after the move
        hit = (near & (count(LANES) == row - FIRST_ROW)).any()
        game = Crossing(
            jnp.where(hit, HOME, row),
            jnp.maximum(rest - 1, 0),
            game.steps_left - 1,
            column,
            pause,
            right,
            jnp.where(due, pause, timer - 1),
        )
        return game, jnp.float32(crossed), game.steps_left < 0

    def cells(self, game: Crossing) -> jax.Array:
        behind = _around(game.column - game.right)
        lanes = mark(1, game.column[:, None] == columns())
        trail = 1 << (1 + game.pause)  # the channel encodes the speed
        lanes |= jnp.where(behind[:, None] == columns(), trail[:, None], 0)
        chicken = mark(0, place(game.row, jnp.int32(COLUMN)))
        return chicken | jnp.pad(lanes, ((FIRST_ROW, FIRST_ROW), (0, 0)))


def _around(column: jax.Array) -> jax.Array:
    """Wraps around at the edges."""
    column = jnp.where(column < 0, SIZE - 1, column)
    return jnp.where(column >= SIZE, 0, column)
