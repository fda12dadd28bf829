"""A user's own environment, made ready for training."""

from typing import Any

from envs_jax.conformance import check_structure, name_of
from envs_jax.environment import Environment, ProtocolError
from envs_jax.wrappers import MOST_STEPS, TimeLimit


def ready(environment: Any) -> Environment:
    """The environment, with a time limit where it has the attribute `time_limit`.

    Raises ProtocolError where it breaks the protocol of environments.
    """
    check_structure(environment)
    limit = getattr(environment, "time_limit", None)
    try:
        return environment if limit is None else TimeLimit(environment, limit)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            f"{name_of(environment)}.time_limit is {limit!r}, expected a number of steps "
            f"from 1 to {MOST_STEPS}, or None"
        ) from error
