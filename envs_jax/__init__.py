"""Pure JAX environments: the protocol, wrappers and a few small environments."""

import difflib
import inspect
from collections.abc import Iterable

from envs_jax.cartpole import CartPole
from envs_jax.catch import Catch
from envs_jax.conformance import ProtocolError, check, check_structure
from envs_jax.environment import Environment, restart, transition
from envs_jax.memory_chain import MemoryChain
from envs_jax.pendulum import Pendulum
from envs_jax.wrappers import AutoReset, Batched, TimeLimit, Wrapper, auto_reset

__all__ = [
    "ENVIRONMENTS",
    "AutoReset",
    "Batched",
    "CartPole",
    "Catch",
    "Environment",
    "MemoryChain",
    "Pendulum",
    "ProtocolError",
    "TimeLimit",
    "Wrapper",
    "auto_reset",
    "check",
    "check_structure",
    "make",
    "restart",
    "transition",
]

ENVIRONMENTS: dict[str, type] = {
    "cartpole": CartPole,
    "catch": Catch,
    "memory-chain": MemoryChain,
    "pendulum": Pendulum,
}


def make(name: str, **options) -> Environment:
    """The environment of that name, cut off at its class's `time_limit` if it has one.

    Args:
      name: a key of `ENVIRONMENTS`.
      **options: the environment's own, as `columns` of Catch.

    Raises:
      ValueError: no environment has that name, or this one has no such option.
    """
    _require("environment", name, ENVIRONMENTS)
    constructor = ENVIRONMENTS[name]
    for option in options:
        _require(f"option of {name}", option, inspect.signature(constructor).parameters)
    environment = constructor(**options)
    limit = getattr(environment, "time_limit", None)
    return environment if limit is None else TimeLimit(environment, limit)


def _require(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise ValueError(
            f"no {what} is named {name!r}; nearest: {', '.join(nearest) or 'none'}; "
            f"known: {', '.join(known) or 'none'}"
        )
