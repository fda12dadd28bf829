"""What MinAtar's games share: actions, sticky ones, planes and pictures (arXiv:1903.03176)."""

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
CELL = 8  # pixels, of a cell's side in a picture


class Draws(NamedTuple):
    """All that is random in a step: `play` and `begin` are functions of it."""

    sticky: jax.Array  # bool [], the last action is repeated
    chance: Any  # the game's own


class State(NamedTuple):
    game: Any  # the game's own
    action: jax.Array  # int32 [], the last one played, of the six


@dataclasses.dataclass(frozen=True)
class Game(abc.ABC):
    """A game on 10 by 10 cells; equal to MinAtar 1.0.15 when fed the same random numbers.

    The six actions are 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire; without
    `full_action_space` the game's `actions` only, numbered from 0 in that order. The
    observation is float32 [10, 10, C]: 1 where the plane's thing is, else 0. There is no
    time limit. Unlike MinAtar's, the last action is forgotten between episodes: the first
    step's is 0.
    """

    sticky_actions: float = 0.1  # the probability that the last action is repeated
    full_action_space: bool = True

    channels: ClassVar[tuple[str, ...]]  # what the planes show
    actions: ClassVar[tuple[int, ...]]  # those that do something
    words: ClassVar[int] = 1  # random ones a step, 32 bits each: they cost time

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
        return dm_env.specs.BoundedArray(shape, np.float32, 0, 1, "planes")

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        count = 6 if self.full_action_space else len(self.actions)
        return dm_env.specs.DiscreteArray(count, name="action")

    def render(self, state: State) -> jax.Array:
        """A picture, uint8 [80, 80, 3]: a colour a plane, the last plane's where two meet."""
        last = jnp.int32(32) - jax.lax.clz(self.cells(state.game))  # 0 where nothing is
        picture = jnp.asarray(_palette(len(self.channels)))[last]
        return picture.repeat(CELL, 0).repeat(CELL, 1)

    def draw(self, key: Key) -> Draws:
        # Drawn alike by step and initial_state: automatic resets then cost no more words.
        words = jax.random.bits(key, (self.words,))
        sticky = (words[0] >> 8) / 2**24 < self.sticky_actions
        return Draws(sticky, self.chance(words))

    @abc.abstractmethod
    def chance(self, words: jax.Array) -> Any:
        """The game's draws of uint32 [words]; the first one's upper 24 bits are taken."""

    @abc.abstractmethod
    def begin(self, chance: Any) -> Any:
        """A new episode."""

    @abc.abstractmethod
    def play(
        self, game: Any, action: jax.Array, chance: Any
    ) -> tuple[Any, jax.Array, jax.Array]:
        """The game after one of the six actions, the reward, and whether it is over."""

    @abc.abstractmethod
    def cells(self, game: Any) -> jax.Array:
        """int32 [10, 10]: bit c of a cell is set where channel c is on."""

    def _planes(self, state: State) -> jax.Array:
        # Looked up rather than computed: a third faster on a CPU.
        channels = len(self.channels)
        bits = count(1 << channels)[:, None] >> count(channels)[None] & 1  # [2^C, C]
        return jnp.float32(bits)[self.cells(state.game)]


# Made anew in each trace: numpy's constants would become operands of AutoReset's cond, and
# under vmap have a copy for each environment.
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
    """bool [10, 10]: that cell only."""
    return (rows() == row) & (columns() == column)


def mark(channel: int, where: jax.Array) -> jax.Array:
    """int32, of the shape of `where`: the channel's bit where it is true."""
    return jnp.where(where, jnp.int32(1 << channel), jnp.int32(0))


def digits(word: jax.Array, *sizes: int) -> list[jax.Array]:
    """int32 numbers below `sizes`, of one random word.

    Not quite uniform: probabilities are wrong by the product of all sizes over 2^32, at most.
    """
    numbers = []
    for size in sizes:
        numbers.append((word % size).astype(jnp.int32))
        word = word // size
    return numbers


def any_of(bits: jax.Array) -> jax.Array:
    """Integers [..., N] joined bit by bit: [...]."""
    while bits.shape[-1] > 1:  # faster than lax.reduce on a CPU, in XLA's compiler too
        half = (bits.shape[-1] + 1) // 2
        bits = bits[..., :half] | bits[..., -half:]
    return bits[..., 0]


def _palette(channels: int) -> np.ndarray:
    """uint8 [channels + 1, 3]: black, then colours around the circle."""
    colours = [colorsys.hsv_to_rgb(i / channels, 0.6, 1) for i in range(channels)]
    return np.uint8(np.round(255 * np.array([(0, 0, 0), *colours])))
