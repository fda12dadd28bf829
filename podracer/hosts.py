"""Hosts: several processes that run one program on all of their cores.

JAX's own multi-controller runtime: every process runs the same script, and `jax.devices()`
are the cores of all (https://docs.jax.dev/en/latest/multi_process.html).
"""

import inspect
import os

import jax
import numpy as np

from podracer.errors import UserError

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
START_SECONDS = 300  # that processes wait for one another at the start
HEARTBEAT_SECONDS = 30  # after which a process that is gone ends the others


def initialize() -> bool:
    """Joins the other processes of a run, where the three VARIABLES name them.

    Comes before anything is computed; does nothing for one process. Returns whether
    there are several. Raises UserError where one of the variables is missing or wrong.
    """
    values = [os.environ.get(name) for name in VARIABLES]
    if not any(values):
        return False
    for name, value in zip(VARIABLES, values, strict=True):
        if not value or (name != VARIABLES[0] and not value.isdigit()):
            raise UserError(
                f"{name} is {value!r}; several processes need {', '.join(VARIABLES)}: "
                "host:port of the first, how many, and which of them this is"
            )
    address, count, number = values[0], int(values[1]), int(values[2])
    if not number < count:
        raise UserError(f"JAX_PROCESS_ID is {number}; it must be from 0 to {count - 1}")
    if count > 1:
        limits = {
            "initialization_timeout": START_SECONDS,
            "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        }
        known = inspect.signature(jax.distributed.initialize).parameters
        limits = {name: x for name, x in limits.items() if name in known}
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, count, number, **limits)
    return count > 1


def refuse(program: str) -> None:
    """Raises UserError for a command that several processes were started with."""
    if int(os.environ.get("JAX_NUM_PROCESSES") or 1) > 1:
        raise UserError(
            f"{program} runs in one process so far; a script of your own can call "
            "podracer.hosts.initialize() and anakin.train in several (docs/hosts.md)"
        )


def agree(number: int, ends: bool) -> tuple[int, bool]:
    """The first host's number, and whether any host wants to end.

    Programs with collectives hang where hosts disagree on how long they run.
    """
    if jax.process_count() == 1:
        return number, ends
    from jax.experimental import multihost_utils

    said = multihost_utils.process_allgather(np.array([number, ends], np.int32))
    return int(said[0, 0]), bool(said[:, 1].any())
