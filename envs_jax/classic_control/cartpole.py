"""CartPole: keep a pole upright on a moving cart (Barto, Sutton and Anderson, 1983)."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import drawing
from envs_jax.environment import Key, restart, transition

GRAVITY = 9.8  # m/s^2
CART_MASS, POLE_MASS = 1.0, 0.1  # kg
HALF_LENGTH = 0.5  # m, of the pole
FORCE = 10.0  # N, to the left or to the right
TIME_STEP = 0.02  # s
MAX_POSITION = 2.4  # m, from the middle of the track
MAX_ANGLE = math.radians(12)  # from upright


class State(NamedTuple):
    """In metres, radians and seconds; the observation consists of these four values."""

    position: jax.Array  # float32 []
    velocity: jax.Array  # float32 []
    angle: jax.Array  # float32 []
    angular_velocity: jax.Array  # float32 []


@dataclasses.dataclass(frozen=True)
class CartPole:
    """A pole hinged on a cart; action 0 pushes the cart to the left, 1 to the right.

    The reward is 1 per step until the pole leans too far or the cart leaves the track.
    Equal to gymnasium's CartPole-v1, whose limit of 500 steps `make` applies. The
    observation is float32 [4]; without `velocities` it is [2], and an agent needs memory
    to infer them.
    """

    velocities: bool = True
    time_limit: ClassVar[int | None] = 500

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        # Random words cost more than the dynamics: 16 bits per value are enough.
        bits = jax.random.bits(key, (2,), jnp.uint32).view(jnp.uint16)
        state = State(*(0.1 * (bits / 2**16) - 0.05))
        return state, restart(self._observation(state))

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        del key  # random at the start only
        acceleration, angular_acceleration = _accelerations(state, action)
        state = State(
            state.position + TIME_STEP * state.velocity,
            state.velocity + TIME_STEP * acceleration,
            state.angle + TIME_STEP * state.angular_velocity,
            state.angular_velocity + TIME_STEP * angular_acceleration,
        )
        off_track = jnp.abs(state.position) > MAX_POSITION
        fell = jnp.abs(state.angle) > MAX_ANGLE
        return state, transition(1.0, self._observation(state), off_track | fell)

    def observation_spec(self) -> dm_env.specs.BoundedArray:
        bound = np.float32([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf])
        bound = self._visible(bound)
        return dm_env.specs.BoundedArray(bound.shape, np.float32, -bound, bound)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        return dm_env.specs.DiscreteArray(2, name="action")

    render_fps = 1 / TIME_STEP

    def render(self, state: State) -> jax.Array:
        """uint8 [H, W, 3]: the track's whole width, the cart and the pole."""
        x, y = 0.5 + state.position / (2 * MAX_POSITION), 0.3
        tip = x + 0.5 * jnp.sin(state.angle), y + 0.5 * jnp.cos(state.angle)
        picture = drawing.line(drawing.canvas(), (0, y), (1, y), 0.02, drawing.GREY)
        picture = drawing.line(picture, (x - 0.06, y), (x + 0.06, y), 0.1)
        return drawing.line(picture, (x, y), tip, 0.04, drawing.RED)

    def _observation(self, state: State) -> jax.Array:
        return jnp.stack(self._visible(state))

    def _visible(self, values: Any) -> Any:
        return values if self.velocities else values[::2]


def _accelerations(state: State, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the cart in m/s^2 and of the pole in rad/s^2, by gymnasium's equations."""
    cos, sin = jnp.cos(state.angle), jnp.sin(state.angle)
    mass, pole = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
    force = jnp.where(action == 1, FORCE, -FORCE)
    push = (force + pole * jnp.square(state.angular_velocity) * sin) / mass
    inertia = HALF_LENGTH * (4 / 3 - POLE_MASS * jnp.square(cos) / mass)
    angular_acceleration = (GRAVITY * sin - cos * push) / inertia
    return push - pole * angular_acceleration * cos / mass, angular_acceleration
