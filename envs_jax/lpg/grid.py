"""LPG's grid worlds: collect objects that pay, avoid those that cost (arXiv:2007.08794)."""

import dataclasses
from typing import Literal

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition
from envs_jax.lpg import world
from envs_jax.lpg.cells import Grid, grid
from envs_jax.lpg.tasks import TASKS, Task, each
from envs_jax.lpg.world import State, World

PALETTE = (drawing.WHITE, drawing.GREY, drawing.GREEN, drawing.RED, drawing.BLUE)


@dataclasses.dataclass(frozen=True)
class LPGGrid:
    """An agent collects objects and moves to any of the 8 neighbouring cells, or stays.

    Actions 0 to 8 move it up left, up, up right, left, not at all, right, down left, down,
    down right; it does not move into walls. An object on its cell is collected: it pays
    its reward and may end the episode. A collected object reappears with its own
    probability in each step. With `collect`, moving does not collect: actions 9 to 17 stay
    and collect from the cell that 0 to 8 would move to. The paper draws one of the two sets
    of actions for each lifetime. `make` applies the task's time limit.

    In the tabular tasks each object has one cell, drawn by `instance` (a lifetime in the
    paper), and the observation is an index, int32 []: the agent's cell * 2**M plus a bit
    for each of the M objects that is present. In the random tasks the objects get new
    cells in every episode and whenever they reappear, and the observation is float32
    [rows, columns, 1 + types]: one plane for the agent and one for each type of object.
    The agent starts on a random cell without an object.
    """

    task: Literal[*TASKS] = "random-dense"
    instance: int = 0  # may be traced: one world per lifetime under vmap
    collect: bool = False

    def __post_init__(self):
        if self.task not in TASKS:
            raise ValueError(
                f"no task is named {self.task!r}; known: {', '.join(TASKS)}"
            )

    @property
    def time_limit(self) -> int:
        return self._task.time_limit

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        key = jax.random.split(key)
        key_cells = jax.random.key(self.instance) if self._task.fixed else key[0]
        cells = world.draw_objects(self._world, key_cells)
        state = world.first(self._world, key[1], cells)
        return state, restart(self._observation(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        state, reward, terminated = world.step(
            self._world, key, state, action, redraw=not self._task.fixed
        )
        return state, transition(reward, self._observation(state), terminated)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        if self._task.fixed:
            return dm_env.specs.DiscreteArray(self._free << self._count)
        shape = (*self._grid.shape, 1 + len(self._task.objects))
        return dm_env.specs.BoundedArray(shape, np.float32, 0, 1, "planes")

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(18 if self.collect else 9, name="action")

    render_fps = 5

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: walls, the agent, objects that pay, objects that cost."""
        _, rewards, _, _ = each(self._task)
        board = np.ones(self._grid.shape[0] * self._grid.shape[1], np.int32)
        board[self._grid.places] = 0
        places = jnp.asarray(self._grid.places)
        shown = jnp.where(rewards > 0, 2, 3) * state.present
        board = jnp.asarray(board).at[places[state.cells]].max(shown)
        board = board.at[places[state.agent]].set(4).reshape(self._grid.shape)
        return drawing.cells(board, PALETTE)

    def _observation(self, state: State) -> jax.Array:
        if self._task.fixed:
            return world.index(self._world, state)
        rows, columns, planes = self.observation_spec().shape
        picture = world.picture(self._world, state, rows * columns, planes)
        return picture.reshape(rows, columns, planes)

    @property
    def _world(self) -> World:
        return world.make_world(self._task, self.collect)

    @property
    def _task(self) -> Task:
        return TASKS[self.task]

    @property
    def _grid(self) -> Grid:
        return grid(self._task.rows)

    @property
    def _free(self) -> int:
        return len(self._grid.places)

    @property
    def _count(self) -> int:
        return each(self._task).shape[1]
