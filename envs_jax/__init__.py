"""Environments in pure JAX: the protocol, wrappers and several families."""

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

from envs_jax import adapters, grid_world, minatar
from envs_jax.bsuite import Bandit, DeepSea, MemoryChain, Umbrella
from envs_jax.catch import Catch
from envs_jax.classic_control import (
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
)
from envs_jax.conformance import check, check_structure
from envs_jax.environment import Environment, ProtocolError, restart, transition
from envs_jax.first_steps import check_first_steps
from envs_jax.lpg import LPGChain, LPGGrid
from envs_jax.wrappers import (
    AutoReset,
    Batched,
    PooledReset,
    TimeLimit,
    Wrapper,
    auto_reset,
    batched,
)

__all__ = [
    "ENVIRONMENTS",
    "Acrobot",
    "AutoReset",
    "Bandit",
    "Batched",
    "CartPole",
    "Catch",
    "DeepSea",
    "Environment",
    "LPGChain",
    "LPGGrid",
    "MemoryChain",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "PooledReset",
    "ProtocolError",
    "TimeLimit",
    "Umbrella",
    "Wrapper",
    "auto_reset",
    "batched",
    "check",
    "check_first_steps",
    "check_structure",
    "grid_world",
    "make",
    "minatar",
    "restart",
    "transition",
]

ENVIRONMENTS: dict[str, type] = {  # by the name that `make` takes
    "acrobot": Acrobot,
    "bandit": Bandit,
    "cartpole": CartPole,
    "catch": Catch,
    "deep-sea": DeepSea,
    "grid-door-key": grid_world.DoorKey,
    "grid-empty": grid_world.Empty,
    "grid-four-rooms": grid_world.FourRooms,
    "grid-memory": grid_world.Memory,
    "lpg-chain": LPGChain,
    "lpg-grid": LPGGrid,
    "memory-chain": MemoryChain,
    "minatar-asterix": minatar.Asterix,
    "minatar-breakout": minatar.Breakout,
    "minatar-freeway": minatar.Freeway,
    "minatar-seaquest": minatar.Seaquest,
    "minatar-space-invaders": minatar.SpaceInvaders,
    "mountain-car": MountainCar,
    "mountain-car-continuous": MountainCarContinuous,
    "pendulum": Pendulum,
    "umbrella": Umbrella,
}


def make(name: str, **options: Any) -> Environment:
    """Makes the environment of that name, with its `time_limit` applied if it has one.

    Args:
      name: a key of `ENVIRONMENTS`, or LIBRARY:NAME, for example "gymnax:CartPole-v1",
        where LIBRARY is one of `adapters.LIBRARIES`.
      **options: the environment's options, for example `columns` of Catch; for an
        environment of a library, `time_limit` and the library's own options.

    Raises:
      ValueError: there is no environment of that name, it has no such option, or its
        library is not installed.
    """
    if ":" in name:
        environment = _from_library(name, options)
    else:
        _require("environment", name, ENVIRONMENTS)
        constructor = ENVIRONMENTS[name]
        known = inspect.signature(constructor).parameters
        for option in options:
            _require(f"option of {name}", option, known)
        environment = constructor(**options)
    limit = getattr(environment, "time_limit", None)
    return environment if limit is None else TimeLimit(environment, limit)


def _from_library(name: str, options: dict) -> Environment:
    library, _, inner = name.partition(":")
    _require("library", library, adapters.LIBRARIES)
    adapters.Options(options.get("time_limit"))  # validates it
    adapter = adapters.load(library)
    _require(f"environment of {library}", inner, adapter.names())
    return adapter.make(inner, **options)


def _require(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise ValueError(
            f"no {what} is named {name!r}; nearest: {', '.join(nearest) or 'none'}; "
            f"known: {', '.join(known) or 'none'}"
        )
