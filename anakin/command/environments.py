"""The environments of `anakin train` by name: ours, LIBRARY:NAME, or MODULE:CLASS."""

import dataclasses
import re
from typing import Any

import envs_jax
from envs_jax import adapters, custom
from podracer import command, imports
from podracer.errors import UserError, nearest
from podracer.runs import run

DEFAULT = "catch"
OF_ENVPOOL = re.compile(r"[A-Z]\w*-v\d+")  # its ids, as Pong-v5
OF_SEBULBA = ("gym", "dm", "ale", "grpc", "grpcs")  # kinds of its environments
HELP = (
    "the environment; or LIBRARY:NAME, as gymnax:CartPole-v1; or MODULE:CLASS, one of "
    "your own"
)


def choose(name: str) -> command.Choice:
    """`--env NAME`. Raises UserError for a name that cannot be any environment's."""
    imports.refuse_file(name, "--env")
    module, _, rest = name.partition(":")
    if module in OF_SEBULBA and ":" in name:
        raise UserError(
            f"--env: {module}: environments run in Sebulba: sebulba train --env {name}"
        )
    if module == "jax" and rest:
        raise UserError(f"--env: jax: is for Sebulba; here it is --env {rest}")
    if name == module and name not in envs_jax.ENVIRONMENTS and imports.exists(name):
        raise UserError(f"--env: {name!r} is a module{_its_environments(name)}")
    known = () if ":" in name else tuple(envs_jax.ENVIRONMENTS)
    if OF_ENVPOOL.fullmatch(name):
        raise UserError(
            f"--env: unknown name {name!r}{nearest(name, known)}; EnvPool's environments run "
            f"in Sebulba: sebulba train --env {name}"
        )
    if brings_code(name) and not imports.exists(module):
        raise UserError(
            f"--env: {module!r} in {name!r} is neither a module in the current folder nor "
            f"a library{nearest(module, adapters.LIBRARIES)}"
        )
    return command.make_choice("env", name, known, HELP)


def _its_environments(name: str) -> str:
    """The end of an error message: which names of a module are environments."""
    module = imports.module(name, "--env")
    known = [
        f"{name}:{x}"
        for x in imports.defined(module)
        if hasattr(getattr(module, x), "step")
    ]
    return f"; its environments: {', '.join(known) or f'none; {name}:CLASS names one'}"


def brings_code(name: str) -> bool:
    """Whether the name is MODULE:CLASS; a library of that name comes first."""
    return ":" in name and name.partition(":")[0] not in adapters.LIBRARIES


def default_options(name: str) -> Any:
    """A dataclass of what can be set: of our and users' environments the environment
    itself, if it is a dataclass.

    Raises UserError for MODULE:CLASS that cannot be imported or made.
    """
    if brings_code(name):
        return imports.options(imports.construct(name, "--env"))
    if ":" in name:
        return adapters.options(name.partition(":")[0])
    return envs_jax.ENVIRONMENTS[name]()


def make(name: str, options: Any) -> envs_jax.Environment:
    """The environment with these options.

    Raises UserError for an unknown name, a library that is not installed, or a class that
    breaks the protocol.
    """
    try:
        if not brings_code(name):
            return envs_jax.make(name, **dataclasses.asdict(options))
        has_none = isinstance(options, imports.NoOptions)
        return custom.ready(imports.construct(name, "--env") if has_none else options)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


def of_run(stored: run.StoredRun) -> envs_jax.Environment:
    """The environment of a run. Raises UserError where it cannot be made here."""
    options = command.filled(default_options(stored.env), stored.config["env"], "env.")
    return make(stored.env, options)


ENVIRONMENTS = command.Environments(DEFAULT, choose, default_options, brings_code)
