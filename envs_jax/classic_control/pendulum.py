"""Pendulum: swing a rod up and hold it there, with a motor too weak to lift it directly."""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition

GRAVITY = 10.0  # m/s^2
MASS, LENGTH = 1.0, 1.0  # kg and m, of the rod
MAX_TORQUE = 2.0  # N m, in either direction
MAX_VELOCITY = 8.0  # rad/s, in either direction
TIME_STEP = 0.05  # s


class State(NamedTuple):
    """In radians and seconds."""

    angle: jax.Array  # float32 [], from upright, -pi to pi
    angular_velocity: jax.Array  # float32 []


@dataclasses.dataclass(frozen=True)
class Pendulum:
    """A rod that hangs on a motor; the action, float32 [1], is the motor's torque in N m.

    The torque is clipped to -2 to 2 before it acts and costs. The reward is 0 for a rod at
    rest upright, else negative, down to -16.3. Equal to gymnasium's Pendulum-v1, whose
    limit of 200 steps `make` applies. Episodes never terminate. The observation is float32
    [3]: cosine and sine of the angle, and the angular velocity.
    """

    time_limit: ClassVar[int | None] = 200

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        # Random words cost more than the dynamics: 16 bits per value are enough.
        bits = jax.random.bits(key, (1,), jnp.uint32).view(jnp.uint16)
        angle, angular_velocity = bits / 2**15 - 1.0
        state = State(math.pi * angle, angular_velocity)
        return state, restart(_observation(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        angle, velocity = state
        torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
        cost = angle**2 + 0.1 * velocity**2 + 0.001 * torque**2  # of the old state
        gravity = 1.5 * GRAVITY / LENGTH * jnp.sin(angle)
        velocity += TIME_STEP * (gravity + 3 / (MASS * LENGTH**2) * torque)
        velocity = jnp.clip(velocity, -MAX_VELOCITY, MAX_VELOCITY)
        state = State(_wrap(angle + TIME_STEP * velocity), velocity)
        return state, transition(-cost, _observation(state))

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        bound = np.float32([1, 1, MAX_VELOCITY])
        return dm_env.specs.BoundedArray((3,), np.float32, -bound, bound)

    def action_spec(self) -> dm_env.specs.BoundedArray:
        bound = MAX_TORQUE
        return dm_env.specs.BoundedArray((1,), np.float32, -bound, bound, "action")

    render_fps = 1 / TIME_STEP

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the rod on its motor."""
        pivot, angle = (0.5, 0.5), state.angle
        # A positive angle leans to the left, as in gymnasium's rendering.
        tip = 0.5 - 0.4 * jnp.sin(angle), 0.5 + 0.4 * jnp.cos(angle)
        picture = drawing.line(drawing.canvas(), pivot, tip, 0.1, drawing.RED)
        return drawing.disc(picture, pivot, 0.04)


def _observation(state: State) -> jax.Array:
    angle, angular_velocity = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), angular_velocity])


def _wrap(angle: jax.Array) -> jax.Array:
    return (angle + math.pi) % (2 * math.pi) - math.pi
