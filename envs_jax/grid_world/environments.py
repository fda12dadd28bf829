"""Grid worlds: find the goal through walls and doors (MiniGrid, arXiv:2306.13831)."""

import abc
import dataclasses
from typing import ClassVar

import dm_env
import jax
import jax.numpy as jnp

from envs_jax.environment import Key, restart, transition
from envs_jax.grid_world import layouts, squares
from envs_jax.grid_world.render import render
from envs_jax.grid_world.squares import BALL, FLOOR, GOAL, KEY, PRIZE, TRAP, State
from envs_jax.grid_world.view import SPEC, view

TURN_LEFT, TURN_RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, NOTHING = range(7)


@dataclasses.dataclass(frozen=True)
class GridWorld(abc.ABC):
    """What all grid worlds share; rules and rewards equal MiniGrid's.

    Actions are MiniGrid's seven: 0 turn left, 1 turn right, 2 step forward, 3 pick up,
    4 drop, 5 open or close, 6 do nothing; 3 to 5 act on the square ahead. The reward comes
    at LAST: 1 - 0.9 * steps / time_limit at the goal, else 0. `make` applies the time
    limit. The observation is `view.view`, float32 [7, 7, 12]; walls and closed doors hide
    what is behind them unless `see_through`.
    """

    random_numbers: ClassVar[int]  # how many `layout` needs
    see_through: bool = dataclasses.field(default=False, kw_only=True)

    @property
    @abc.abstractmethod
    def time_limit(self) -> int:
        """In steps, as MiniGrid's; the reward depends on it."""

    @abc.abstractmethod
    def layout(self, numbers: jax.Array) -> State:
        """The initial state, from `random_numbers` uniform numbers."""

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        state = self.layout(jax.random.uniform(key, (self.random_numbers,)))
        return state, restart(view(state, self.see_through))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        state = _act(state, action)
        here = state.grid[state.row, state.column]
        prize = (action == FORWARD) & self.succeeded(state)
        over = prize | ((action == FORWARD) & (here == TRAP))
        reward = jnp.where(prize, 1 - 0.9 * state.steps / self.time_limit, 0.0)
        return state, transition(reward, view(state, self.see_through), over)

    def succeeded(self, state: State) -> jax.Array:
        """Whether the agent is at the goal, bool []."""
        return squares.is_any(state.grid[state.row, state.column], GOAL, PRIZE)

    render_fps = 5

    def render(self, state: State) -> jax.Array:
        """uint8 [8 * H, 8 * W, 3], the whole grid."""
        return render(state)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return SPEC

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(7, name="action")


@dataclasses.dataclass(frozen=True)
class Empty(GridWorld):
    """One room with the goal in a corner (MiniGrid-Empty).

    With `random_start` (MiniGrid-Empty-Random) the agent starts anywhere; otherwise it
    starts in the opposite corner and nothing is random.
    """

    random_numbers: ClassVar[int] = 2
    size: int = 8
    random_start: bool = False
    see_through: bool = dataclasses.field(default=True, kw_only=True)  # as MiniGrid's

    def __post_init__(self):
        _require("size", self.size, at_least=4)

    @property
    def time_limit(self) -> int:
        return 4 * self.size**2

    def layout(self, numbers: jax.Array) -> State:
        return layouts.empty(numbers, self.size, self.random_start)


@dataclasses.dataclass(frozen=True)
class FourRooms(GridWorld):
    """Four rooms connected by four gaps; goal and agent anywhere (MiniGrid-FourRooms)."""

    random_numbers: ClassVar[int] = 7
    size: int = 19

    def __post_init__(self):
        _require("size", self.size, at_least=5, odd=True)

    @property
    def time_limit(self) -> int:
        return 100

    def layout(self, numbers: jax.Array) -> State:
        return layouts.four_rooms(numbers, self.size)


@dataclasses.dataclass(frozen=True)
class DoorKey(GridWorld):
    """Pick up the key, open the door, go to the goal behind it (MiniGrid-DoorKey)."""

    random_numbers: ClassVar[int] = 5
    size: int = 8

    def __post_init__(self):
        _require("size", self.size, at_least=5)

    @property
    def time_limit(self) -> int:
        return 10 * self.size**2

    def layout(self, numbers: jax.Array) -> State:
        return layouts.door_key(numbers, self.size)


@dataclasses.dataclass(frozen=True)
class Memory(GridWorld):
    """Remember a key or a ball and go to the same object at the fork (MiniGrid-Memory).

    The agent faces the fork and may start past the cue, which is then behind it. The wrong
    side ends the episode with reward 0. With `random_length` the hallway's length is random
    too. Nothing can be picked up. From the fork of sizes 7 and 9 the agent can look back at the
    cue; from size 11 on it must remember it.
    """

    random_numbers: ClassVar[int] = 4
    size: int = 7
    random_length: bool = False

    def __post_init__(self):
        _require("size", self.size, at_least=7, odd=True)

    @property
    def time_limit(self) -> int:
        return 5 * self.size**2

    def layout(self, numbers: jax.Array) -> State:
        return layouts.memory(numbers, self.size, self.random_length)


def _act(state: State, action: jax.Array) -> State:
    turn = squares.is_any(action, TURN_RIGHT).astype(jnp.int32) - (action == TURN_LEFT)
    down, right = squares.ahead(state.direction)
    row, column = state.row + down, state.column + right
    square, carried = state.grid[row, column], state.carried
    after, carried_after = _handle(square, carried, action)
    moves = (action == FORWARD) & squares.walkable(square)
    return State(
        squares.put(state.grid, squares.at(state.grid.shape, row, column), after),
        jnp.where(moves, row, state.row),
        jnp.where(moves, column, state.column),
        (state.direction + turn) % 4,
        carried_after,
        state.steps + 1,
    )


def _handle(
    square: jax.Array, carried: jax.Array, action: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The square ahead and the carried object, both uint8 [], after the action."""
    free = carried == FLOOR
    takes = (action == PICK_UP) & free & squares.is_any(square, KEY, BALL)
    drops = (action == DROP) & ~free & (square == FLOOR)
    after = jnp.where(action == TOGGLE, squares.toggled(square, carried), square)
    swapped = takes | drops  # one of the two is FLOOR
    return jnp.where(swapped, carried, after), jnp.where(swapped, square, carried)


def _require(what: str, value: int, at_least: int, odd: bool = False) -> None:
    if value < at_least or (odd and value % 2 == 0):
        kind = "odd and at least" if odd else "at least"
        raise ValueError(f"{what} is {value}; it must be {kind} {at_least}")
