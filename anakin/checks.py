"""What is checked before a run starts."""

import contextlib
from collections.abc import Iterator

from envs_jax import ENVIRONMENTS, TimeLimit
from envs_jax.conformance import COPIES, check_structure
from envs_jax.environment import Environment, ProtocolError
from envs_jax.first_steps import STEPS, check_first_steps
from podracer.errors import UserError, check_at_least_one, check_range
from podracer.training import memory


def check(
    environment: Environment,
    batch_size: int,
    unroll_length: int,
    total_steps: int,
    cores: int,
    reset_pool: int | None = None,
) -> None:
    """Raises UserError where a run could not start."""
    check_at_least_one(
        batch_size=batch_size, unroll_length=unroll_length, total_steps=total_steps
    )
    if reset_pool is not None:  # a larger one makes episodes that nobody plays
        check_range("reset_pool", reset_pool, 1, batch_size)
    if batch_size % cores:
        raise UserError(
            f"batch_size is {batch_size}, which {cores} cores cannot share equally: "
            f"choose a multiple of {cores}, or other cores"
        )
    with in_one_line():
        check_structure(environment)


def check_played(environment: Environment) -> None:
    """Raises UserError where the first timesteps break the protocol or their spec, and
    where these alone need more memory than there is.

    Our own environments, as `envs_jax.make` returns them, are not played: the tests do that.
    """
    inner = environment.environment if type(environment) is TimeLimit else environment
    if type(inner) in ENVIRONMENTS.values():
        return
    timesteps = COPIES * (STEPS + 1)
    memory.check_bytes(timesteps * memory.size_of(environment.observation_spec()))
    with in_one_line(": correct the environment or its observation_spec"):
        check_first_steps(environment)


@contextlib.contextmanager
def in_one_line(way_out: str = "") -> Iterator[None]:
    """UserError in place of ProtocolError, which knows no way out."""
    try:
        yield
    except ProtocolError as error:
        raise UserError(f"{error}{way_out}") from error
