"""LPG's delayed chains: the first action decides the last reward (arXiv:2007.08794)."""

import dataclasses
from typing import Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition
from envs_jax.random_bits import random_bits


class Task(NamedTuple):
    """A row of the paper's table."""

    shortest: int  # steps
    longest: int  # steps
    noisy: bool = False  # random rewards before the last step
    distractors: int = 0  # random bits; with none, the observation is an index


TASKS = {
    "short": Task(5, 30),
    "short-noisy": Task(5, 30, noisy=True),
    "long": Task(5, 50),
    "long-noisy": Task(5, 50, noisy=True),
    "distractor": Task(5, 30, distractors=20),
}


class State(NamedTuple):
    length: jax.Array  # int32 [], of the episode; the same for all of an instance
    correct: jax.Array  # int32 [], the first action that is rewarded
    first: jax.Array  # int32 [], the action at FIRST; 0 before
    steps: jax.Array  # int32 [], since FIRST


def draw_length(key: Key, task: Task) -> jax.Array:
    """The length of an instance's episodes, int32 []."""
    return jax.random.randint(key, (), task.shortest, task.longest + 1)


def advance(
    state: State, action: jax.Array, noise: jax.Array, noisy: jax.Array | bool
) -> tuple[State, jax.Array, jax.Array]:
    """The state after `action`, the reward, and whether it is LAST; `noise` is a bit."""
    first = jnp.where(state.steps == 0, action, state.first).astype(jnp.int32)
    state = state._replace(first=first, steps=state.steps + 1)
    last = state.steps >= state.length
    final = jnp.where(first == state.correct, 1.0, -1.0)
    return state, jnp.where(last, final, noisy * (2.0 * noise - 1)), last


def index(state: State) -> jax.Array:
    """The observation without distractors, int32 []."""
    return 4 * state.steps + 2 * state.correct + state.first


def bits(state: State, noise: jax.Array) -> jax.Array:
    """The observation with distractors `noise` [N], float32 [2 + N]."""
    relevant = jnp.stack([state.correct, state.first])
    return jnp.concatenate([relevant, noise]).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class LPGChain:
    """Only the first action counts: LAST pays +1 if it was the correct one, else -1.

    The correct action (0 or 1) is drawn for every episode and shown from FIRST on, so the
    optimal mean return is 1. The length is uniform over the task's range and the same in
    all episodes of an `instance` (a lifetime in the paper). The noisy tasks pay -1 or +1
    at random in every step before the last.

    The observation contains the correct action and the first action (0 at FIRST), so that
    the reward at LAST is predictable. With distractors it is float32 [22]: these two bits,
    and 20 that are redrawn in every step. Otherwise it is an index that also contains the
    number of steps, int32 []: 4 * steps + 2 * correct + first.
    """

    task: Literal["short", "short-noisy", "long", "long-noisy", "distractor"] = "short"
    instance: int = 0  # may be traced: one length per lifetime under vmap

    def __post_init__(self):
        if self.task not in TASKS:
            raise ValueError(
                f"no task is named {self.task!r}; known: {', '.join(TASKS)}"
            )

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        task = TASKS[self.task]
        noise = random_bits(key, task.distractors + 1)
        length = draw_length(jax.random.key(self.instance), task)
        state = State(length, noise[-1], jnp.int32(0), jnp.int32(0))
        return state, restart(self._observation(state, noise[:-1]))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        task = TASKS[self.task]
        noise = random_bits(key, task.distractors + 1)
        state, reward, last = advance(state, action, noise[-1], task.noisy)
        observation = self._observation(state, noise[:-1])
        return state, transition(reward, observation, last)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        task = TASKS[self.task]
        if task.distractors:
            shape = (2 + task.distractors,)
            return dm_env.specs.BoundedArray(shape, np.float32, 0, 1)
        return dm_env.specs.DiscreteArray(4 * (task.longest + 1))

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(2, name="action")

    render_fps = 5

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the correct action, the first one below it, remaining time."""
        picture, begun = drawing.canvas(), state.steps > 0
        correct = (0.3 + 0.4 * state.correct, 0.75)
        first = (0.3 + 0.4 * state.first, 0.4)
        picture = drawing.disc(picture, correct, 0.15, drawing.GREEN)
        picture = drawing.disc(picture, first, 0.15 * begun, drawing.BLUE)
        left = 1 - state.steps / state.length
        return drawing.line(picture, (0, 0.05), (left, 0.05), 0.06, drawing.GREY)

    def _observation(self, state: State, noise: jax.Array) -> jax.Array:
        return bits(state, noise) if TASKS[self.task].distractors else index(state)
