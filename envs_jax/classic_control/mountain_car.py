"""Mountain car: swing out of a valley with a motor that is too weak (Moore, 1990)."""

import dataclasses
import itertools
from typing import ClassVar, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition

LEFT, RIGHT = -1.2, 0.6  # the ends of the track; the left one is a wall
MAX_SPEED = 0.07  # per step, in either direction
GRAVITY = 0.0025
FORCE, GOAL = 0.001, 0.5  # of the car with three actions
POWER, CONTINUOUS_GOAL = 0.0015, 0.45  # of the one with a throttle


class State(NamedTuple):
    """Along the track, without units; the observation consists of these two values."""

    position: jax.Array  # float32 [], the valley's bottom is at -pi / 6
    velocity: jax.Array  # float32 [], per step


@dataclasses.dataclass(frozen=True)
class MountainCar:
    """A car in a valley; actions 0, 1, 2 push it to the left, not at all, to the right.

    The reward is -1 per step until the car is on the right hill. Equal to
    gymnasium's MountainCar-v0, whose limit of 200 steps `make` applies. The observation
    is float32 [2]: position and velocity.
    """

    time_limit: ClassVar[int | None] = 200

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        return _start(key)

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        state = _roll(state, FORCE * (action - 1))
        return state, transition(-1.0, jnp.stack(state), _is_up(state, GOAL))

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return _observation_spec()

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(3, name="action")

    def succeeded(self, state: State) -> jax.Array:
        """Whether the car is on the right hill, bool []."""
        return _is_up(state, GOAL)

    render_fps = 30  # as gymnasium

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the hills, the car and the goal's pole."""
        return _picture(state, GOAL)


@dataclasses.dataclass(frozen=True)
class MountainCarContinuous:
    """A car in a valley; the action, float32 [1], is its throttle, -1 to 1.

    The throttle is clipped before it acts, but not for its cost: the reward is -0.1 times
    the square of the action, plus 100 on the right hill, where the episode ends. Equal to
    gymnasium's MountainCarContinuous-v0, whose limit of 999 steps `make` applies. The
    observation is float32 [2]: position and velocity.
    """

    time_limit: ClassVar[int | None] = 999

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        return _start(key)

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        throttle = action[0]
        state = _roll(state, POWER * jnp.clip(throttle, -1, 1))
        up = _is_up(state, CONTINUOUS_GOAL)
        return state, transition(100.0 * up - 0.1 * throttle**2, jnp.stack(state), up)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        return _observation_spec()

    def action_spec(self) -> dm_env.specs.BoundedArray:
        return dm_env.specs.BoundedArray((1,), np.float32, -1, 1, "action")

    def succeeded(self, state: State) -> jax.Array:
        """Whether the car is on the right hill, bool []."""
        return _is_up(state, CONTINUOUS_GOAL)

    render_fps = 30  # as gymnasium

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the hills, the car and the goal's pole."""
        return _picture(state, CONTINUOUS_GOAL)


def _start(key: Key) -> tuple[State, dm_env.TimeStep]:
    position = jax.random.uniform(key, (), jnp.float32, minval=-0.6, maxval=-0.4)
    state = State(position, jnp.float32(0))
    return state, restart(jnp.stack(state))


def _roll(state: State, push: jax.Array) -> State:
    """The state one step later; the wall at the left stops the car."""
    velocity = state.velocity + push - GRAVITY * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -MAX_SPEED, MAX_SPEED)
    position = jnp.clip(state.position + velocity, LEFT, RIGHT)
    return State(position, jnp.where(position <= LEFT, 0.0, velocity))


def _is_up(state: State, goal: float) -> jax.Array:
    return (state.position >= goal) & (state.velocity >= 0)


def _observation_spec() -> dm_env.specs.BoundedArray:
    low, high = np.float32([LEFT, -MAX_SPEED]), np.float32([RIGHT, MAX_SPEED])
    return dm_env.specs.BoundedArray((2,), np.float32, low, high)


def _picture(state: State, goal: float) -> jax.Array:
    def on_track(position, above=0.0):
        height = 0.45 * jnp.sin(3 * position) + 0.55
        return (position - LEFT) / (RIGHT - LEFT), 0.1 + 0.7 * height + above

    picture = drawing.canvas()
    track = [on_track(position) for position in np.linspace(LEFT, RIGHT, 17)]
    for start, end in itertools.pairwise(track):
        picture = drawing.line(picture, start, end, 0.03, drawing.GREY)
    pole = on_track(goal), on_track(goal, above=0.15)
    picture = drawing.line(picture, *pole, 0.03, drawing.GREEN)
    return drawing.disc(
        picture, on_track(state.position, above=0.05), 0.05, drawing.BLUE
    )
