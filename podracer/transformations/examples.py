"""Example timesteps and actor outputs, whose shapes are known before a run."""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from podracer.agent import ActorOutput, PyTree


def zero_timestep(observation_spec: PyTree, batch_size: int) -> dm_env.TimeStep:
    """An example [B, ...] of what environments with these observations give."""

    def zeros(spec: Any) -> jax.Array:
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
        return jnp.zeros((batch_size, *spec.shape), dtype)

    numbers = jnp.zeros((2, batch_size))
    step_type = jnp.zeros(batch_size, jnp.int32)
    return dm_env.TimeStep(step_type, *numbers, jax.tree.map(zeros, observation_spec))


def one_step(
    actor_step: Callable, params: PyTree, actor_state: PyTree, observation_spec: PyTree
) -> tuple[dm_env.TimeStep, ActorOutput]:
    """An example timestep [1, ...] and the actor's answer to it."""
    timestep = zero_timestep(observation_spec, 1)
    keys = jax.random.split(jax.random.key(0), 1)
    return timestep, actor_step(keys, params, actor_state, timestep)[1]
