"""One grid world as arrays, and its dynamics: worlds padded to one size can be stacked."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.environment import Key
from envs_jax.lpg.cells import draw_cells, grid
from envs_jax.lpg.tasks import Task, each

Array = Any  # of numpy, a constant of the program, or of JAX


class World(NamedTuple):
    """A map of up to P free cells with up to M objects; what exceeds its own is padding."""

    beside: Array  # int32 [P, 9], see `cells.Grid`
    places: Array  # int32 [P], see `cells.Grid`
    free: Array  # int32 [], number of free cells
    exists: Array  # bool [M]
    planes: Array  # int32 [M], the plane that shows the object; the agent's is 0
    rewards: Array  # float32 [M]
    terminates: Array  # float32 [M]
    returns: Array  # float32 [M]
    fixed: Array  # bool [], whether the objects keep their cells
    collect: Array  # bool [], whether actions 9 to 17 collect, see `LPGGrid`


class State(NamedTuple):
    """Cells are the indices of `cells.Grid`."""

    agent: jax.Array  # int32 [], its cell
    cells: jax.Array  # int32 [M], of the objects, present or not
    present: jax.Array  # bool [M]


def make_world(task: Task, collect: bool = False) -> World:
    """The world of a row of the paper's tables, without padding."""
    map = grid(task.rows)
    kinds, rewards, terminates, returns = each(task)
    return World(
        map.beside,
        map.places,
        np.int32(len(map.places)),
        np.ones(len(kinds), bool),
        1 + kinds.astype(np.int32),
        rewards,
        terminates,
        returns,
        np.bool_(task.fixed),
        np.bool_(collect),
    )


def stack(worlds: Sequence[World]) -> World:
    """The worlds [N, ...], padded with 0 to the largest."""

    def together(*arrays):
        largest = [max(sizes) for sizes in zip(*(x.shape for x in arrays))]
        pads = [[(0, most - n) for n, most in zip(x.shape, largest)] for x in arrays]
        return np.stack([np.pad(x, pad) if pad else x for x, pad in zip(arrays, pads)])

    return jax.tree.map(together, *worlds)


def draw_objects(world: World, key: Key) -> jax.Array:
    """Distinct cells for the objects, int32 [M]."""
    nowhere = jnp.reshape(world.free, 1)
    return draw_cells(key, len(world.exists), nowhere, world.free)


def first(world: World, key: Key, cells: jax.Array) -> State:
    """The start of an episode with the objects on these cells, int32 [M]."""
    taken = jnp.where(world.exists, cells, world.free)
    agent = draw_cells(key, 1, taken, world.free)[0]
    return State(agent, cells, jnp.asarray(world.exists))


def step(
    world: World, key: Key, state: State, action: jax.Array, redraw: bool = True
) -> tuple[State, jax.Array, jax.Array]:
    """The state after `action`, the reward, and whether the episode has terminated.

    `redraw` is False where no world is other than fixed, which saves drawing cells.
    """
    key_chance, key_cells = jax.random.split(key)
    ends, comes = jax.random.uniform(key_chance, (2, len(world.exists)))

    move = jnp.where(world.collect, action, action % 9)
    target = jnp.asarray(world.beside)[state.agent, action % 9]
    agent = jnp.where((move < 9) & (target >= 0), target, state.agent)
    collecting = jnp.where(action >= 9, target, -1)
    reached = jnp.where(world.collect, collecting, agent)
    collected = state.present & (state.cells == reached)
    reward = jnp.sum(world.rewards * collected)
    terminated = jnp.any(collected & (ends < world.terminates))

    present, cells = state.present & ~collected, state.cells
    if redraw:
        alone = ~jnp.any(present & (cells == agent))  # else its cell occurs twice
        taken = jnp.where(
            jnp.append(present, alone), jnp.append(cells, agent), world.free
        )
        drawn = draw_cells(key_cells, len(cells), taken, world.free)
        cells = jnp.where(present | world.fixed, cells, drawn)
    returns = world.exists & (comes < world.returns)
    return State(agent, cells, present | returns), reward, terminated


def index(world: World, state: State) -> jax.Array:
    """The observation of a tabular task, int32 []: the agent's cell and who is present."""
    bits = jnp.sum(state.present.astype(jnp.int32) << jnp.arange(len(world.exists)))
    return (state.agent << jnp.sum(world.exists)) + bits


def picture(world: World, state: State, places: int, planes: int) -> jax.Array:
    """The observation of a random task, float32 [places, planes], of the flattened map."""
    cells = jnp.append(state.agent, state.cells)
    at = jnp.asarray(world.places)[cells][:, None]
    shown = jnp.append(True, state.present)[:, None]
    there = shown & (at == jnp.arange(places)[None])  # [1 + M, places]
    plane = jnp.append(0, world.planes)[:, None]
    single = [(there & (plane == number)).any(0) for number in range(planes)]
    return jnp.float32(jnp.stack(single, axis=-1))
