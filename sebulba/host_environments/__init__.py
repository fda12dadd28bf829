"""Environments on the host by name: EnvPool's, and `jax:NAME` for our own."""

from typing import Any

import numpy as np

from sebulba.host_environments import envpool, envs_jax
from sebulba.host_environments.environment import Games, HostEnvironment

__all__ = ["Games", "HostEnvironment", "default_options", "first_seed", "make"]

JAX = "jax:"


def default_options(name: str) -> Any:
    """A frozen dataclass of what can be set in that environment; UserError if unknown."""
    if name.startswith(JAX):
        return envs_jax.default_options(name.removeprefix(JAX))
    return envpool.default_options(name)


def make(
    name: str, batch_size: int, seed: int, threads: int, options: Any
) -> HostEnvironment:
    """A batch of environments, seeded with `seed` to `seed + batch_size - 1`.

    Args:
      name: an EnvPool id, as `Pong-v5`, or `jax:catch`.
      batch_size: how many.
      seed: see `first_seed`.
      threads: of a C++ pool.
      options: `default_options(name)`, changed.
    """
    if name.startswith(JAX):
        name = name.removeprefix(JAX)
        return envs_jax.JaxEnvironment(name, batch_size, seed, options)
    return envpool.EnvPool(name, batch_size, seed, threads, options)


def first_seed(seed: int, thread: int, batch_size: int) -> int:
    """The first seed of an actor thread; no two threads of a run share one.

    `thread` counts over all hosts.
    """
    start = np.random.SeedSequence(seed).generate_state(1)[0] % 2**30
    return int(start) + thread * batch_size
