"""Environments on the host by name: EnvPool's, `jax:`, `gym:`, `dm:` and `grpc:`."""

from typing import Any

import numpy as np

from podracer.errors import UserError, nearest
from sebulba.host_environments import envpool, envs_jax, python, remote
from sebulba.host_environments.environment import Games, HostEnvironment

__all__ = ["DOORS", "Games", "HostEnvironment", "default_options", "first_seed", "make"]

DOORS = {  # before the colon; each has `default_options` and `make`, as below
    "": envpool,
    "jax": envs_jax,
    "gym": python.GYM,
    "dm": python.DM,
    "grpc": remote.Door("grpc"),
    "grpcs": remote.Door("grpcs"),  # with TLS
}


def default_options(name: str) -> Any:
    """A frozen dataclass of what can be set in that environment; UserError if unknown."""
    door, name = _split(name)
    return DOORS[door].default_options(name)


def make(
    name: str, batch_size: int, seed: int, threads: int, options: Any
) -> HostEnvironment:
    """A batch of environments, seeded with `seed` to `seed + batch_size - 1`.

    Args:
      name: an EnvPool id, as `Pong-v5`, or `jax:catch`, `gym:CartPole-v1`,
        `dm:MODULE:FUNCTION`, `grpc://HOST:PORT`.
      batch_size: how many.
      seed: see `first_seed`.
      threads: of a C++ pool.
      options: `default_options(name)`, changed.
    """
    door, name = _split(name)
    return DOORS[door].make(name, batch_size, seed, threads, options)


def _split(name: str) -> tuple[str, str]:
    """The door and the name behind it. Raises UserError for a door that is none."""
    door, colon, rest = name.partition(":")
    if not colon:
        return "", name
    if door not in DOORS:
        raise UserError(
            f"--env: {door!r} in {name!r} is no kind of environment"
            f"{nearest(door, filter(None, DOORS))}"
        )
    return door, rest


def first_seed(seed: int, thread: int, batch_size: int) -> int:
    """The first seed of an actor thread; no two threads of a run share one.

    `thread` counts over all hosts.
    """
    start = np.random.SeedSequence(seed).generate_state(1)[0] % 2**30
    return int(start) + thread * batch_size
