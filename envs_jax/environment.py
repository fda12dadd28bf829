"""The environment protocol: dm_env's contract as pure functions (arXiv:2006.12983, dm_env).

An implementation describes one episode of one environment, without a batch axis:

| step_type | reward            | discount                          | observation |
|-----------|-------------------|-----------------------------------|-------------|
| FIRST     | 0                 | 1                                 | the first   |
| MID       | of the transition | of the transition                 | the next    |
| LAST      | of the transition | 0 if terminated, 1 if truncated   | the last    |

The environment does not define what follows LAST: `wrappers.AutoReset` ignores the next
action and returns FIRST of a new episode. Anakin and Sebulba apply it themselves.
"""

from typing import Any, Protocol

import dm_env
import jax
import jax.numpy as jnp

State = Any
Key = jax.Array


class ProtocolError(ValueError):
    """One line: the environment, the place, the value found and what was expected."""


class Environment(Protocol):
    """Implemented by frozen dataclasses; `conformance.check` checks one."""

    def initial_state(self, key: Key) -> tuple[State, dm_env.TimeStep]:
        """Starts an episode with randomness from `key`: its state and FIRST timestep."""

    def step(
        self, key: Key, state: State, action: jax.Array
    ) -> tuple[State, dm_env.TimeStep]:
        """The state and timestep after `action`, of the same shapes and dtypes."""

    def observation_spec(self) -> Any:
        """A pytree of dm_env specs with the observation's structure."""

    def action_spec(self) -> Any:
        """A dm_env spec: a `DiscreteArray` if the action is one choice.

        A `BoundedArray` otherwise: of integers from 0 for several choices, of float32 for
        continuous actions.
        """


def restart(observation: Any) -> dm_env.TimeStep:
    """FIRST: reward 0, discount 1."""
    return timestep(dm_env.StepType.FIRST, 0.0, 1.0, observation)


def transition(
    reward: jax.Array, observation: Any, terminated: jax.Array | bool = False
) -> dm_env.TimeStep:
    """MID, or LAST with discount 0 where `terminated`."""
    step_type = jnp.where(terminated, dm_env.StepType.LAST, dm_env.StepType.MID)
    return timestep(step_type, reward, jnp.where(terminated, 0.0, 1.0), observation)


def timestep(
    step_type: Any, reward: Any, discount: Any, observation: Any
) -> dm_env.TimeStep:
    """A TimeStep with fixed dtypes: int32, float32, float32, the observation's own."""
    return dm_env.TimeStep(
        step_type=jnp.asarray(step_type, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        observation=jax.tree.map(jnp.asarray, observation),
    )
