"""Acrobot: swing two hanging links up by the joint between them (Sutton, NIPS 1995)."""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition

GRAVITY = 9.8  # m/s^2
MASS, LENGTH = 1.0, 1.0  # kg and m, of either link
CENTRE = 0.5  # m, from a link's upper end to its centre of mass
INERTIA = 1.0  # kg m^2, of either link
TIME_STEP = 0.2  # s
MAX_VELOCITY_1, MAX_VELOCITY_2 = 4 * math.pi, 9 * math.pi  # rad/s, in either direction
GOAL = 1.0  # m, above the fixed end


class State(NamedTuple):
    """In radians and seconds; also used for its time derivative."""

    angle_1: jax.Array  # float32 [], of the upper link, from hanging, -pi to pi
    angle_2: jax.Array  # float32 [], of the lower link, from the upper one's direction
    velocity_1: jax.Array  # float32 [], of angle_1
    velocity_2: jax.Array  # float32 [], of angle_2


@dataclasses.dataclass(frozen=True)
class Acrobot:
    """Two links hang from a pivot; actions 0, 1, 2 apply -1, 0, 1 N m to their joint.

    The reward is -1 per step until the free end is more than 1 m above the pivot, then 0.
    Equal to gymnasium's Acrobot-v1, whose limit of 500 steps `make` applies. The
    observation is float32 [6]: cosine and sine of each angle, and both velocities.
    """

    time_limit: ClassVar[int | None] = 500

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        # Random words cost more than the dynamics: 16 bits per value are enough.
        bits = jax.random.bits(key, (2,), jnp.uint32).view(jnp.uint16)
        state = State(*(0.2 * (bits / 2**16) - 0.1))
        return state, restart(_observation(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        angle_1, angle_2, velocity_1, velocity_2 = _integrate(state, action - 1.0)
        state = State(
            _wrap(angle_1),
            _wrap(angle_2),
            jnp.clip(velocity_1, -MAX_VELOCITY_1, MAX_VELOCITY_1),
            jnp.clip(velocity_2, -MAX_VELOCITY_2, MAX_VELOCITY_2),
        )
        _, free = _joints(state)
        up = free[1] > GOAL
        return state, transition(jnp.where(up, 0.0, -1.0), _observation(state), up)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        bound = np.float32([1, 1, 1, 1, MAX_VELOCITY_1, MAX_VELOCITY_2])
        return dm_env.specs.BoundedArray((6,), np.float32, -bound, bound)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(3, name="action")

    render_fps = 15  # as gymnasium: three times as fast as the clock

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the links and the height to reach."""
        pivot, goal = (0.5, 0.5), 0.5 + GOAL / 4.4
        middle, free = ((0.5 + x / 4.4, 0.5 + y / 4.4) for x, y in _joints(state))
        picture = drawing.line(
            drawing.canvas(), (0, goal), (1, goal), 0.02, drawing.GREY
        )
        picture = drawing.line(picture, pivot, middle, 0.06, drawing.BLUE)
        picture = drawing.line(picture, middle, free, 0.06, drawing.GREEN)
        return drawing.disc(picture, pivot, 0.04)


def _observation(state: State) -> jax.Array:
    cos_1, sin_1 = jnp.cos(state.angle_1), jnp.sin(state.angle_1)
    cos_2, sin_2 = jnp.cos(state.angle_2), jnp.sin(state.angle_2)
    return jnp.stack([cos_1, sin_1, cos_2, sin_2, state.velocity_1, state.velocity_2])


def _joints(state: State) -> tuple[drawing.Point, drawing.Point]:
    """The joint between the links and the free end, in m from the pivot."""
    both = state.angle_1 + state.angle_2
    x, y = jnp.sin(state.angle_1), -jnp.cos(state.angle_1)
    return (x, y), (x + jnp.sin(both), y - jnp.cos(both))


def _integrate(state: State, torque: jax.Array) -> State:
    """One step of the fourth-order Runge-Kutta method, as in gymnasium."""

    def after(rate: State, time: float) -> State:
        return State(*(x + time * dx for x, dx in zip(state, rate, strict=True)))

    k1 = _rate(state, torque)
    k2 = _rate(after(k1, TIME_STEP / 2), torque)
    k3 = _rate(after(k2, TIME_STEP / 2), torque)
    k4 = _rate(after(k3, TIME_STEP), torque)
    slopes = zip(k1, k2, k3, k4, strict=True)
    return after(
        State(*((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes)), TIME_STEP
    )


def _rate(state: State, torque: jax.Array) -> State:
    """The equations of motion of Sutton and Barto (1998), section 11.3."""
    angle_1, angle_2, velocity_1, velocity_2 = state
    coupling = MASS * LENGTH * CENTRE
    bend, twist = coupling * jnp.cos(angle_2), coupling * jnp.sin(angle_2)
    d2 = MASS * CENTRE**2 + INERTIA + bend
    d1 = 2 * MASS * CENTRE**2 + MASS * LENGTH**2 + 2 * INERTIA + 2 * bend
    phi2 = MASS * CENTRE * GRAVITY * jnp.sin(angle_1 + angle_2)
    weight = (MASS * CENTRE + MASS * LENGTH) * GRAVITY
    phi1 = weight * jnp.sin(angle_1) + phi2
    phi1 -= twist * velocity_2 * (velocity_2 + 2 * velocity_1)
    push = torque + d2 / d1 * phi1 - twist * velocity_1**2 - phi2
    acceleration_2 = push / (MASS * CENTRE**2 + INERTIA - d2**2 / d1)
    acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
    return State(velocity_1, velocity_2, acceleration_1, acceleration_2)


def _wrap(angle: jax.Array) -> jax.Array:
    return (angle + math.pi) % (2 * math.pi) - math.pi
