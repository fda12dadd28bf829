"""LPG's training worlds as one distribution over tasks (arXiv:2007.08794, appendix).

A lifetime draws a task, arrays of fixed shapes, and plays it to its end. All families share
one program: tasks may be batched with `vmap`, whatever their families.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.environment import Key, restart, timestep
from envs_jax.lpg import chain, world
from envs_jax.lpg import tasks as tables
from envs_jax.random_bits import random_bits

GRIDS = {f"grid-{name}": task for name, task in tables.TASKS.items()}
CHAINS = {f"chain-{name}": task for name, task in chain.TASKS.items()}
FAMILIES = (*GRIDS, *CHAINS)  # names of groups of tasks


class Task(NamedTuple):
    """What one lifetime plays; () where no family has such a part."""

    family: jax.Array  # int32 [], its place in `TaskDistribution.families`
    time_limit: jax.Array  # int32 [], steps
    world: Any  # World, padded to the largest of the families
    cells: Any  # int32 [M], of the objects in worlds where they are fixed
    length: Any  # int32 [], of a chain


class State(NamedTuple):
    """An episode of a task; () where no family has such a part."""

    steps: jax.Array  # int32 [], since FIRST
    grid: Any  # world.State
    chain: Any  # chain.State


@dataclasses.dataclass(frozen=True)
class TaskDistribution:
    """Tasks of some families, each with the same chance.

    What LPG fixes per lifetime is drawn with the task: the family, the set of actions, the
    cells of a tabular world's objects, a chain's length. The observation depends on what
    the families need. If all of theirs are indices it is one, int32 []; if none is, it is
    float32 [D], flattened and padded with 0; otherwise it is a dictionary of both, `index`
    and `features`, in which 0 is the index of tasks that have none (theirs begin at 1).

    There are as many actions as the largest set needs. Surplus actions repeat those of a
    task with fewer: of 18 in a grid without collecting, 9 to 17 move as 0 to 8 do; in a
    chain, even actions are action 0 and odd ones are action 1.
    """

    families: tuple[str, ...] = ("grid-tabular-dense",)
    collect: Literal["never", "always", "both"] = "both"
    """whether grids have the 18 actions with which moving does not collect; both: drawn"""

    def __post_init__(self):
        unknown = [name for name in self.families if name not in FAMILIES]
        if unknown or not self.families:
            raise ValueError(
                f"families are {self.families}; known: {', '.join(FAMILIES)}"
            )

    def sample(self, key: Key) -> Task:
        """A task of one of the families."""
        keys = jax.random.split(key, 4)
        family = jax.random.randint(keys[0], (), 0, len(self.families))
        limits = [GRIDS[x].time_limit if x in GRIDS else 2**30 for x in self.families]
        grid = cells = length = ()
        if self._has_grids:
            grid = jax.tree.map(lambda x: jnp.asarray(x)[family], self._worlds)
            chances = {"never": 0.0, "always": 1.0, "both": 0.5}
            collect = jax.random.uniform(keys[1]) < chances[self.collect]
            grid = grid._replace(collect=collect)
            cells = world.draw_objects(grid, keys[2])
        if self._has_chains:
            draws = [
                chain.draw_length(keys[3], CHAINS[x]) if x in CHAINS else 1
                for x in self.families
            ]
            length = jnp.stack([*map(jnp.int32, draws)])[family]
        return Task(family, jnp.asarray(limits, jnp.int32)[family], grid, cells, length)

    def environment(self, task: Task) -> "TaskEnvironment":
        """The environment of a task, which may be traced."""
        return TaskEnvironment(self, task)

    def observation_spec(self) -> Any:
        index = dm_env.specs.DiscreteArray(self._indices + 1, name="index")
        size = max(map(self._size, self.families))
        features = dm_env.specs.BoundedArray((size,), np.float32, 0, 1, "features")
        if not size:
            return index
        return {"index": index, "features": features} if self._indices else features

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        grids = 9 if self.collect == "never" else 18
        return dm_env.specs.DiscreteArray(
            grids if self._has_grids else 2, name="action"
        )

    @property
    def _has_grids(self) -> bool:
        return any(x in GRIDS for x in self.families)

    @property
    def _has_chains(self) -> bool:
        return any(x in CHAINS for x in self.families)

    @property
    def _worlds(self) -> world.World:
        """The worlds of the families [F, ...], of chains all padding."""
        worlds = [world.make_world(GRIDS[x]) for x in self.families if x in GRIDS]
        nothing = jax.tree.map(np.zeros_like, worlds[0])
        made = iter(worlds)
        return world.stack(
            [next(made) if x in GRIDS else nothing for x in self.families]
        )

    @property
    def _indices(self) -> int:
        """The number of indices that the largest of the families needs; 0 if none does."""
        needed = [0]
        for x in self.families:
            if x in CHAINS and not CHAINS[x].distractors:
                needed.append(4 * (CHAINS[x].longest + 1))
            if x in GRIDS and GRIDS[x].fixed:
                row = world.make_world(GRIDS[x])
                needed.append(int(row.free) << len(row.exists))
        return max(needed)

    def _size(self, family: str) -> int:
        """The number of features of a family's observations; 0 if they are indices."""
        if family in CHAINS:
            distractors = CHAINS[family].distractors
            return distractors and 2 + distractors
        task = GRIDS[family]
        return 0 if task.fixed else len(task.rows) * len(task.rows[0]) * _planes(task)


def _planes(task: tables.Task) -> int:
    return 1 + len(task.objects)


@dataclasses.dataclass(frozen=True)
class TaskEnvironment:
    """A task of `TaskDistribution` as an environment, with its time limit."""

    tasks: TaskDistribution
    task: Task

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        grid, links, noise, task = (), (), (), self.task
        if self.tasks._has_grids:
            keys = jax.random.split(key)
            cells = task.cells
            if self._redraws:
                drawn = world.draw_objects(task.world, keys[0])
                cells = jnp.where(task.world.fixed, cells, drawn)
            grid = world.first(task.world, keys[1], cells)
        if self.tasks._has_chains:
            noise = self._noise(key)
            zero = jnp.int32(0)
            links = chain.State(task.length, noise[-1], zero, zero)
        state = State(jnp.int32(0), grid, links)
        return state, restart(self._observation(state, noise))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        grid, links, noise, task = (), (), (), self.task
        outcomes = []  # (reward, terminated), of grids and of chains
        if self.tasks._has_grids:
            grid, *outcome = world.step(
                task.world, key, state.grid, action, self._redraws
            )
            outcomes.append(outcome)
        if self.tasks._has_chains:
            noise = self._noise(key)
            noisy = self._of_family(lambda x: x in CHAINS and CHAINS[x].noisy)
            links, *outcome = chain.advance(state.chain, action % 2, noise[-1], noisy)
            outcomes.append(outcome)
        reward, terminated = outcomes[0]
        if len(outcomes) > 1:
            is_chain = self._of_family(lambda x: x in CHAINS)
            reward, terminated = (
                jnp.where(is_chain, b, a) for a, b in zip(*outcomes, strict=True)
            )
        state = State(state.steps + 1, grid, links)
        last = terminated | (state.steps >= task.time_limit)
        discount = jnp.where(terminated, 0.0, 1.0)
        step_type = jnp.where(last, dm_env.StepType.LAST, dm_env.StepType.MID)
        observation = self._observation(state, noise)
        return state, timestep(step_type, reward, discount, observation)

    def observation_spec(self) -> Any:
        return self.tasks.observation_spec()

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return self.tasks.action_spec()

    @property
    def _redraws(self) -> bool:
        """Whether objects of any family change their cells."""
        return any(x in GRIDS and not GRIDS[x].fixed for x in self.tasks.families)

    def _of_family(self, of: Any) -> jax.Array:
        """`of(name)`, a bool, for the task's family."""
        flags = np.array([bool(of(x)) for x in self.tasks.families])
        return jnp.asarray(flags)[self.task.family]

    def _noise(self, key: Key) -> jax.Array:
        """A chain's random bits of a step: the distractors, and one more."""
        most = [CHAINS[x].distractors for x in self.tasks.families if x in CHAINS]
        return random_bits(key, max(most) + 1)

    def _observation(self, state: State, noise: jax.Array) -> Any:
        spec = self.observation_spec()
        parts = spec if isinstance(spec, dict) else {"only": spec}
        seen = {
            name: self._features(state, noise, part.shape[0])
            if part.shape
            else self._index(state)
            for name, part in parts.items()
        }
        return seen if isinstance(spec, dict) else seen["only"]

    def _index(self, state: State) -> jax.Array:
        seen = jnp.int32(0)
        if self.tasks._has_grids:
            seen = world.index(self.task.world, state.grid)
        if self.tasks._has_chains:
            is_chain = self._of_family(lambda x: x in CHAINS)
            seen = jnp.where(is_chain, chain.index(state.chain), seen)
        has_index = self._of_family(lambda x: not self.tasks._size(x))
        return jnp.where(has_index, seen + 1, 0)

    def _features(self, state: State, noise: jax.Array, size: int) -> jax.Array:
        families, seen = self.tasks.families, jnp.zeros(size)
        for number, name in enumerate(families):
            if not (length := self.tasks._size(name)):
                continue
            if name in GRIDS:
                planes = _planes(GRIDS[name])
                args = self.task.world, state.grid, length // planes, planes
                shown = world.picture(*args).reshape(-1)
            else:
                shown = chain.bits(state.chain, noise[: length - 2])
            here = jnp.pad(shown, (0, size - length))
            seen = jnp.where(self.task.family == number, here, seen)
        return seen
