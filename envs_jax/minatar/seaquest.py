"""MinAtar's Seaquest: shoot fish and submarines, rescue divers, watch the oxygen."""

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs_jax.minatar.game import (
    DOWN,
    FIRE,
    LEFT,
    NOOP,
    RIGHT,
    SIZE,
    UP,
    Game,
    columns,
    count,
    digits,
    mark,
    move,
    place,
    rows,
)
from envs_jax.minatar.swimmers import (
    Swimmers,
    at,
    empty,
    inside,
    launch,
    launched_shots,
    planes,
    remove,
    swim,
)

OXYGEN = 200  # steps under water
GAUGE = 10  # cells that show a full tank
CREW = 6  # maximum number of divers on board
RELOAD = 5  # steps between two shots
SHOT_INTERVAL = 10  # steps that an enemy submarine waits between shots
SPAWN_INTERVAL, LEAST_SPAWN = 20, 1  # steps between two enemies
MOVE_INTERVAL, LEAST_MOVE = 5, 2  # steps that an enemy waits between moves
DIVER_SPAWN, DIVER_MOVE = 30, 5  # the same for divers

# The largest numbers at once, at the highest speed: a new one replaces the oldest, which
# has left the board by then.
ENEMIES = 30  # one per step, each leaves within 30 steps
DIVERS = 2  # one per 30 steps, each leaves within 60
BULLETS = 2  # one per 5 steps, each leaves within 10


class Chance(NamedTuple):
    """Properties of the next enemy and the next diver: all int32 []."""

    right: jax.Array  # 1 if the enemy swims to the right
    kind: jax.Array  # 0 is a submarine, 1 and 2 a fish
    row: jax.Array  # 0 to 7, from the board's row 1
    diver_right: jax.Array
    diver_row: jax.Array


class Diving(NamedTuple):
    """All int32 [], except swimmers, shots, and the field that is bool []."""

    row: jax.Array  # of the player's submarine
    column: jax.Array
    right: jax.Array  # 1 or -1, the direction it faces
    surfaced: jax.Array  # bool
    oxygen: jax.Array  # steps
    crew: jax.Array  # divers on board; -1 after a rescue of six, as in MinAtar
    bullets: Swimmers  # [2], the player's
    enemies: Swimmers  # [30]
    divers: Swimmers  # [2]
    shots: tuple[
        jax.Array, jax.Array
    ]  # to the left and to the right, int32 [10]: bits of rows
    reload_timer: jax.Array  # steps
    spawn_timer: jax.Array
    spawn_interval: jax.Array
    diver_timer: jax.Array
    move_interval: jax.Array
    ramps: jax.Array  # number of speed increases so far


@dataclasses.dataclass(frozen=True)
class Seaquest(Game):
    """Each enemy hit pays 1; surfacing with six divers pays 1 per 20 steps of oxygen left.

    The episode ends when an enemy or its shot hits the player, when the oxygen is used up,
    and when the player surfaces without a diver. Surfacing refills the oxygen and costs one
    diver; with `ramping` it also makes enemies appear and move faster.
    """

    ramping: bool = True

    channels: ClassVar[tuple[str, ...]] = (
        "sub_front",
        "sub_back",
        "friendly_bullet",
        "trail",
        "enemy_bullet",
    ) + ("enemy_fish", "enemy_sub", "oxygen_gauge", "diver_gauge", "diver")
    actions: ClassVar[tuple[int, ...]] = (NOOP, LEFT, UP, RIGHT, DOWN, FIRE)
    words: ClassVar[int] = 2

    def chance(self, words: jax.Array) -> Chance:
        return Chance(*digits(words[1], 2, 3, 8, 2, 8))

    def begin(self, chance: Chance) -> Diving:
        del chance
        return Diving(
            row=jnp.int32(0),
            column=jnp.int32(5),
            right=jnp.int32(-1),
            surfaced=jnp.bool_(True),
            oxygen=jnp.int32(OXYGEN),
            crew=jnp.int32(0),
            bullets=empty(BULLETS),
            enemies=empty(ENEMIES),
            divers=empty(DIVERS),
            shots=(jnp.zeros(SIZE, jnp.int32), jnp.zeros(SIZE, jnp.int32)),
            reload_timer=jnp.int32(0),
            spawn_timer=jnp.int32(SPAWN_INTERVAL),
            spawn_interval=jnp.int32(SPAWN_INTERVAL),
            diver_timer=jnp.int32(DIVER_SPAWN),
            move_interval=jnp.int32(MOVE_INTERVAL),
            ramps=jnp.int32(0),
        )

    def play(
        self, game: Diving, action: jax.Array, chance: Chance
    ) -> tuple[Diving, jax.Array, jax.Array]:
        game = _steer(_spawn(game, chance), action)
        game, shot = _shoot(game)
        game, met, hurt = _attack(_rescue(game))
        suffocated = game.oxygen <= 0
        game, surfacing = _breathe(game)
        drowned = surfacing & (game.crew == 0)
        game, paid = self._surface(game, surfacing & ~drowned)
        return game, jnp.float32(shot + met + paid), hurt | suffocated | drowned

    def cells(self, game: Diving) -> jax.Array:
        left, right = game.shots
        tank = GAUGE * jnp.maximum(game.oxygen, 0) // OXYGEN
        bottom, last = rows() == SIZE - 1, SIZE - 1
        bullets, _, _ = planes(game.bullets)
        fish, submarines, trails = planes(game.enemies)
        divers, _, more_trails = planes(game.divers)
        things = (
            place(game.row, game.column),
            place(game.row, game.column - game.right),
            bullets,
            trails | more_trails,
            (left | right)[:, None] >> columns() & 1 == 1,
            fish,
            submarines,
            bottom & (columns() < tank),
            bottom & (columns() >= last - game.crew) & (columns() < last),
            divers,
        )
        return functools.reduce(jnp.bitwise_or, map(mark, range(10), things))

    def _surface(self, game: Diving, surfacing: jax.Array) -> tuple[Diving, jax.Array]:
        """Refills the oxygen for one diver; and int32 [], the reward for a full crew."""
        whole = game.crew == CREW
        paid = jnp.where(surfacing & whole, GAUGE * game.oxygen // OXYGEN, 0)
        spawn, steps = game.spawn_interval, game.move_interval
        ramping = (spawn > LEAST_SPAWN) | (steps > LEAST_MOVE)
        ramping &= surfacing & self.ramping
        game = game._replace(
            surfaced=game.surfaced | surfacing,
            oxygen=jnp.where(surfacing, OXYGEN, game.oxygen),
            crew=jnp.where(whole & surfacing, 0, game.crew) - surfacing,
            spawn_interval=spawn - (ramping & (spawn > LEAST_SPAWN)),
            move_interval=steps
            - (ramping & (steps > LEAST_MOVE) & (game.ramps % 2 == 1)),
            ramps=game.ramps + ramping,
        )
        return game, paid


def _spawn(game: Diving, chance: Chance) -> Diving:
    """Adds the enemy and the diver that are due; all enemies of a row swim the same way."""
    right, column = _from_edge(chance.right)
    row = 1 + chance.row
    due, wait = game.spawn_timer == 0, game.move_interval
    others = inside(game.enemies) & (game.enemies.row == row)
    free = ~(others & (game.enemies.right != right)).any()
    enemy = row, column, right, wait, chance.kind == 0, SHOT_INTERVAL

    diver_due = game.diver_timer == 0
    diver_right, diver_column = _from_edge(chance.diver_right)
    diver = 1 + chance.diver_row, diver_column, diver_right, DIVER_MOVE, False, 0
    return game._replace(
        enemies=launch(game.enemies, due & free, *enemy),
        divers=launch(game.divers, diver_due, *diver),
        spawn_timer=jnp.where(due, game.spawn_interval, game.spawn_timer),
        diver_timer=jnp.where(diver_due, DIVER_SPAWN, game.diver_timer),
    )


def _from_edge(right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32 []: the direction, 1 or -1, and the column where it starts."""
    return jnp.where(right == 1, 1, -1), jnp.where(right == 1, 0, SIZE - 1)


def _steer(game: Diving, action: jax.Array) -> Diving:
    fire = (action == FIRE) & (game.reload_timer == 0)
    bullet = game.row, game.column, game.right, 0, False, 0
    turn = move(action, LEFT, RIGHT)
    return game._replace(
        bullets=launch(game.bullets, fire, *bullet),
        reload_timer=jnp.where(fire, RELOAD, game.reload_timer),
        row=jnp.clip(game.row + move(action, UP, DOWN), 0, SIZE - 2),
        column=jnp.clip(game.column + turn, 0, SIZE - 1),
        right=jnp.where(turn != 0, turn, game.right),
    )


def _shoot(game: Diving) -> tuple[Diving, jax.Array]:
    """Moves the bullets; and int32 [], the hits. Fish are hit first, then the oldest."""
    bullets, _ = swim(game.bullets, 0)
    enemies, hits = game.enemies, jnp.int32(0)
    order = 1 + count(ENEMIES) + jnp.where(enemies.armed, 0, ENEMIES)
    for i, there in enumerate(inside(bullets)):
        met = at(enemies, bullets.row[i], bullets.column[i]) & there
        first = jnp.where(met, order, 0).max()
        enemies = remove(enemies, met & (order == first))
        bullets = remove(bullets, (count(BULLETS) == i) & met.any())
        hits += met.any()
    return game._replace(bullets=bullets, enemies=enemies), hits


def _rescue(game: Diving) -> Diving:
    """Moves the divers; those at the player come on board, the newest first."""
    divers, _ = swim(game.divers, DIVER_MOVE)
    met = at(game.divers, game.row, game.column) | at(divers, game.row, game.column)
    crew = game.crew
    for i in range(DIVERS):
        taken = met[i] & (crew < CREW)
        divers = remove(divers, (count(DIVERS) == i) & taken)
        crew += taken
    return game._replace(divers=divers, crew=crew)


def _attack(game: Diving) -> tuple[Diving, jax.Array, jax.Array]:
    """Moves enemies and shots; the number hit by bullets; whether one hit the player."""
    enemies, moved = swim(game.enemies, game.move_interval)
    met = at(enemies, game.row, game.column)
    hurt = (met | at(game.enemies, game.row, game.column)).any()

    fires = inside(game.enemies) & enemies.armed & (enemies.reload == 0)
    reload = jnp.where(fires, SHOT_INTERVAL, enemies.reload - 1)
    launched = launched_shots(enemies, fires)  # also by those that now leave or are hit
    left, right = map(jnp.bitwise_or, game.shots, launched)
    player = jnp.where(count(SIZE) == game.row, 1 << game.column, 0)
    shots = left >> 1, right << 1 & (1 << SIZE) - 1
    hurt |= ((left | right | shots[0] | shots[1]) & player != 0).any()

    bullets, alive = game.bullets, moved & ~met
    there, hit = inside(bullets), jnp.zeros(ENEMIES, bool)
    for i in reversed(range(BULLETS)):  # of two bullets in a cell, the older one hits
        struck = alive & at(enemies, bullets.row[i], bullets.column[i]) & there[i]
        struck &= ~hit
        bullets = remove(bullets, (count(BULLETS) == i) & struck.any())
        hit |= struck
    enemies = remove(enemies._replace(reload=reload), hit)
    game = game._replace(enemies=enemies, shots=shots, bullets=bullets)
    return game, hit.sum(dtype=jnp.int32), hurt


def _breathe(game: Diving) -> tuple[Diving, jax.Array]:
    """Advances all timers; and bool [], whether the player surfaces in this step."""
    under = game.row > 0
    game = game._replace(
        spawn_timer=jnp.maximum(game.spawn_timer - 1, 0),
        diver_timer=jnp.maximum(game.diver_timer - 1, 0),
        reload_timer=jnp.maximum(game.reload_timer - 1, 0),
        oxygen=game.oxygen - under,
        surfaced=game.surfaced & ~under,
    )
    return game, ~under & ~game.surfaced
