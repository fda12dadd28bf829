"""The environments of `sebulba train` by name, in batches for its actor threads."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from podracer import command, imports, parallel
from podracer.checkpoints import finding
from podracer.errors import UserError
from podracer.runs import run, run_folder
from sebulba import host_environments
from sebulba.host_environments.environment import capabilities_of

DEFAULT = "CartPole-v1"
HELP = (
    "the environment: an EnvPool id, or ale:pong, jax:catch, jax:MODULE:CLASS, "
    "gym:CartPole-v1, dm:MODULE:FUNCTION, grpc://HOST:PORT"
)
OF_EVALUATION = 2**15  # as if this actor thread played: its seeds are no other thread's


def choose(name: str) -> command.Choice:
    """`--env NAME`, which may be any: EnvPool's games are too many to list."""
    return command.Choice("env", name, (), HELP)


def maker(env: str, config: Any, threads: int) -> Callable[..., Any]:
    """(actor thread, batch_size, options, updates before) -> its environments.

    Args:
      env: their name.
      config: of `sebulba train`.
      threads: number of actor threads, which share out the CPUs.
    """
    env_threads = config.env_threads or max(1, parallel.processors() // threads)

    def make(thread, batch_size=config.batch_size, options=config.env, updates=0):
        seed = host_environments.first_seed(
            config.seed, thread, config.batch_size, updates
        )
        return host_environments.make(env, batch_size, seed, env_threads, options)

    return make


def updates_before(resume: Path | None) -> int:
    """The updates of the newest checkpoint of a run to resume; 0 where a run starts."""
    if resume is None:
        return 0
    return max(finding.find_checkpoints(resume / run_folder.CHECKPOINTS), default=0)


def example(make: Callable[..., Any], env: str) -> Any:
    """One environment, the first to be made: what is wrong with it is said here.

    Raises UserError where it cannot be made, whatever it raises.
    """
    try:
        return make(0, batch_size=1)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"--env {env}: cannot be made: {imports.describe(error)}"
        ) from error


def whole(options: Any) -> Any:
    """Options with which an episode is a whole game rather than a life of it."""
    if hasattr(options, "per_life"):
        return dataclasses.replace(options, per_life=False)
    return options


def of_run(stored: run.StoredRun, size: int, seed: int) -> Any:
    """The environments of a run, with other seeds than in training."""
    default = host_environments.default_options(stored.env)
    options = command.filled(default, stored.config["env"], "env.")
    return to_evaluate(stored.env, whole(options), size, seed)


def to_evaluate(name: str, options: Any, size: int, seed: int) -> Any:
    """Environments with other seeds than in training."""
    first = host_environments.first_seed(seed + 1, OF_EVALUATION, size)
    threads = parallel.processors()
    return host_environments.make(name, size, first, threads, options)


def to_film(stored: run.StoredRun, seed: int) -> Any:
    """One environment of a run that can draw: where EnvPool's cannot, gymnasium's twin.

    That has the same name, observations and actions: MuJoCo's have one.
    """
    environment = of_run(stored, 1, seed)
    if capabilities_of(environment).render or ":" in stored.env:
        return environment
    try:
        default = host_environments.default_options(f"gym:{stored.env}")
        twin = host_environments.make(f"gym:{stored.env}", 1, seed, 1, default)
    except UserError:
        return environment
    if capabilities_of(twin).render and _shapes(twin) == _shapes(environment):
        print(f"pictures of gymnasium's {stored.env}")
        environment.close()
        return twin
    twin.close()
    return environment


def _shapes(environment: Any) -> Any:
    specs = environment.observation_spec(), environment.action_spec()
    return jax.tree.map(lambda spec: (spec.shape, spec.dtype), specs)
