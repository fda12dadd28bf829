"""A user's own environment, made ready for training."""

from typing import Any

from envs_jax.conformance import check_structure
from envs_jax.environment import Environment
from envs_jax.wrappers import TimeLimit


def ready(environment: Any) -> Environment:
    """The environment, with a time limit where it has the attribute `time_limit`.

    Raises ProtocolError where it breaks the protocol of environments.
    """
    check_structure(environment)
    limit = getattr(environment, "time_limit", None)
    return environment if limit is None else TimeLimit(environment, limit)
