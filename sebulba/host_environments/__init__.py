"""Environments on the host, by name: EnvPool ids, `jax:`, `gym:`, `dm:`, `ale:`, `grpc:`."""

from typing import Any

import numpy as np

from podracer import imports
from podracer.errors import UserError, check_at_least_one, nearest
from sebulba.host_environments import ale, envpool, envs_jax, python
from sebulba.host_environments.environment import Games, HostEnvironment
from sebulba.host_environments.options import check_threads
from sebulba.host_environments.remote import adapter

__all__ = [
    "ADAPTERS",
    "Games",
    "HostEnvironment",
    "brings_code",
    "default_options",
    "first_seed",
    "make",
]

# Registered ids of gymnasium whose arguments name the environment, and so a module.
COMPATIBILITY = ("GymV",)

ADAPTERS = {  # by the name's prefix; each has `default_options` and `make`, as below
    "": envpool,
    "jax": envs_jax,
    "gym": python.GYM,
    "dm": python.DM,
    "ale": ale,
    "grpc": adapter.GRPC,
    "grpcs": adapter.GRPCS,  # with TLS
}


def brings_code(name: str) -> bool:
    """Whether making the environment imports a module that the name chooses.

    True for `dm:MODULE:FUNCTION`, `gym:MODULE:ID` and `jax:MODULE:CLASS`: a run folder,
    which may be somebody else's, must not choose one (SECURITY.md).
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix in ("ale", "grpc", "grpcs"):
        return False
    if prefix == "gym" and rest.startswith(COMPATIBILITY):
        return True
    return ":" in rest or prefix not in ("jax", "gym")


def default_options(name: str) -> Any:
    """The environment's options, a frozen dataclass. Raises UserError if it is unknown."""
    kind, rest = _split(name)
    return kind.default_options(rest)


def make(
    name: str, batch_size: int, seed: int, threads: int, options: Any
) -> HostEnvironment:
    """A batch of environments, seeded with `seed` to `seed + batch_size - 1`.

    Args:
      name: an EnvPool id, as `Pong-v5`, or `jax:catch`, `gym:CartPole-v1`,
        `gym:MODULE:ID`, `dm:MODULE:FUNCTION`, `ale:pong`, `grpc://HOST:PORT`.
      batch_size: B, the number of environments.
      seed: see `first_seed`.
      threads: number of threads of a C++ pool.
      options: `default_options(name)`, with changes.

    Raises:
      UserError: there is no such environment, or it is not supported.
    """
    check_at_least_one(batch_size=batch_size)
    check_threads(threads)
    kind, rest = _split(name)
    return kind.make(rest, batch_size, seed, threads, options)


def _split(name: str) -> tuple[Any, str]:
    """The adapter of a prefix, and the rest of the name. Raises UserError."""
    if name.split() != [name]:
        raise UserError(
            f"--env: {name!r} is no environment's name, which has no spaces"
        )
    prefix, colon, rest = name.partition(":")
    if not colon:
        prefix, rest = "", name
    if not prefix and envs_jax.is_name(rest):
        raise UserError(
            f"--env: {name!r} is a JAX environment; in Sebulba it is --env jax:{name}"
        )
    if prefix and prefix not in ADAPTERS and imports.exists(prefix):
        raise UserError(
            f"--env: a JAX environment of your own is --env jax:{name}, one of gymnasium "
            f"--env gym:{name}"
        )
    if prefix not in ADAPTERS or (colon and not prefix):
        raise UserError(
            f"--env: {prefix!r} in {name!r} is no kind of environment"
            f"{nearest(prefix, filter(None, ADAPTERS))}"
        )
    return ADAPTERS[prefix], rest


def first_seed(seed: int, thread: int, batch_size: int, updates: int = 0) -> int:
    """The first seed of an actor thread's batch; the threads' ranges are disjoint.

    Args:
      seed: of the run.
      thread: number of the actor thread, counted over all hosts.
      batch_size: B, the number of environments of a thread.
      updates: after which the run resumes, so that it repeats no episodes.
    """
    start = np.random.SeedSequence((seed, updates)).generate_state(1)[0] % 2**30
    return int(start) + thread * batch_size
