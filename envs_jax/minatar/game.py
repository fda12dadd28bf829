"""What MinAtar's games share: sticky actions, planes, rendering (arXiv:1903.03176)."""

import abc
import colorsys
import dataclasses
from typing import Any, ClassVar, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.environment import Key, restart, transition

NOOP, LEFT, UP, RIGHT, DOWN, FIRE = range(6)

SIZE = 10  # cells, of the board's side
CELL = 8  # pixels, side of a cell in a picture


class Draws(NamedTuple):
    """The random draws of one step; given them, `play` and `begin` are deterministic."""

    sticky: jax.Array  # bool [], the last action is repeated
    chance: Any  # specific to the game


class State(NamedTuple):
    """A game's own state, and the last action."""

    game: Any  # specific to the game
    action: jax.Array  # int32 [], the last one executed, 0 to 5


@dataclasses.dataclass(frozen=True)
class Game(abc.ABC):
    """A game on 10 by 10 cells; equal to MinAtar 1.0.15 given the same random numbers.

    The six actions are 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire; without
    `full_action_space` only the game's `actions`, renumbered from 0 in that order. The
    observation is bool [10, 10, C]: one plane per object type, true where such an object
    is. There is no time limit. Unlike in MinAtar, the last action, which a sticky action
    repeats, is reset to 0 at the start of an episode.
    """

    sticky_actions: float = 0.1  # the probability that the last action is repeated
    full_action_space: bool = True

    channels: ClassVar[tuple[str, ...]]  # names of the planes
    actions: ClassVar[tuple[int, ...]]  # those that have an effect
    words: ClassVar[int] = 1  # random 32-bit words per step: each costs time

    def __post_init__(self):
        if not 0 <= self.sticky_actions <= 1:
            raise ValueError(
                f"sticky_actions is {self.sticky_actions}; a probability is 0 to 1"
            )

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        state = State(self.begin(self.draw(key).chance), jnp.int32(NOOP))
        return state, restart(self._planes(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        sticky, chance = self.draw(key)
        if not self.full_action_space:
            action = jnp.array(self.actions, jnp.int32)[action]
        action = jnp.where(sticky, state.action, action).astype(jnp.int32)
        game, reward, terminated = self.play(state.game, action, chance)
        state = State(game, action)
        return state, transition(reward, self._planes(state), terminated)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        shape = (SIZE, SIZE, len(self.channels))
        return dm_env.specs.BoundedArray(shape, np.bool_, False, True, "planes")

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        count = 6 if self.full_action_space else len(self.actions)
        return dm_env.specs.DiscreteArray(count, name="action")

    render_fps = 10

    def render(self, state: State) -> jax.Array:
        """uint8 [80, 80, 3]: one colour per plane; later planes cover earlier ones."""
        last = jnp.int32(32) - jax.lax.clz(self.cells(state.game))  # 0 where empty
        picture = jnp.asarray(_palette(len(self.channels)))[last]
        return picture.repeat(CELL, 0).repeat(CELL, 1)

    def draw(self, key: Key) -> Draws:
        # The same in step and initial_state, so that automatic resets need no more words.
        words = jax.random.bits(key, (self.words,), jnp.uint32)
        sticky = (words[0] >> 8) / 2**24 < self.sticky_actions
        return Draws(sticky, self.chance(words))

    @abc.abstractmethod
    def chance(self, words: jax.Array) -> Any:
        """The game's draws from uint32 [words]; the first word's upper 24 bits are in use."""

    @abc.abstractmethod
    def begin(self, chance: Any) -> Any:
        """The initial state of an episode."""

    @abc.abstractmethod
    def play(
        self, game: Any, action: jax.Array, chance: Any
    ) -> tuple[Any, jax.Array, jax.Array]:
        """The state after one of the six actions, the reward, and whether the game is over."""

    @abc.abstractmethod
    def cells(self, game: Any) -> jax.Array:
        """int32 [10, 10]: bit c of a cell is set where channel c is on."""

    def _planes(self, state: State) -> jax.Array:
        # A table lookup: a third faster on a CPU than computing the bits.
        channels = len(self.channels)
        bits = count(1 << channels)[:, None] >> count(channels)[None] & 1  # [2^C, C]
        return (bits == 1)[self.cells(state.game)]


# Functions rather than numpy constants: those would become operands of the `cond` in
# AutoReset, with one copy per environment under vmap.
def count(size: int) -> jax.Array:
    """int32 [size]: 0, 1, ..."""
    return jax.lax.iota(jnp.int32, size)


def rows() -> jax.Array:
    """int32 [10, 1]."""
    return count(SIZE)[:, None]


def columns() -> jax.Array:
    """int32 [1, 10]."""
    return count(SIZE)[None]


def move(action: jax.Array, less: int, more: int) -> jax.Array:
    """int32 []: -1 for the action `less`, 1 for `more`, else 0."""
    return jnp.int32(action == more) - jnp.int32(action == less)


def place(row: jax.Array, column: jax.Array) -> jax.Array:
    """bool [10, 10]: true in that cell only."""
    return (rows() == row) & (columns() == column)


def mark(channel: int, where: jax.Array) -> jax.Array:
    """int32, shaped like `where`: the channel's bit where it is true, else 0."""
    return jnp.where(where, jnp.int32(1 << channel), jnp.int32(0))


def digits(word: jax.Array, *sizes: int) -> list[jax.Array]:
    """Random integers below `sizes`, int32, from one random word.

    Not exactly uniform: the error is at most the product of all sizes over 2^32.
    """
    numbers = []
    for size in sizes:
        numbers.append((word % size).astype(jnp.int32))
        word = word // size
    return numbers


def any_of(bits: jax.Array) -> jax.Array:
    """The bitwise or of integers along the last axis: [..., N] to [...]."""
    while bits.shape[-1] > 1:  # on a CPU, compiles and runs faster than lax.reduce
        half = (bits.shape[-1] + 1) // 2
        bits = bits[..., :half] | bits[..., -half:]
    return bits[..., 0]


def _palette(channels: int) -> np.ndarray:
    """uint8 [channels + 1, 3]: black, then colours of all hues."""
    colours = [colorsys.hsv_to_rgb(i / channels, 0.6, 1) for i in range(channels)]
    return np.uint8(np.round(255 * np.array([(0, 0, 0), *colours])))
