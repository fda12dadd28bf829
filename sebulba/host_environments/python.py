"""Python environments by name: `gym:ID`, `gym:MODULE:ID`, `dm:MODULE:FUNCTION`.

Each environment steps in a worker process of its own, see `processes`.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from podracer import imports
from podracer.errors import UserError, nearest
from sebulba.host_environments.options import Options, json_object
from sebulba.host_environments.processes import Processes

INSTALL = imports.install("gymnasium")
Maker = Callable[[int], Callable[[], Any]]  # (seed) -> what makes a gymnasium.Env


class PythonAdapter(NamedTuple):
    """`gym` or `dm`, as `sebulba.host_environments.ADAPTERS` has them."""

    prefix: str
    # (name) -> the function that makes one, and arguments that it always gets; UserError
    find: Callable[[str], tuple[Callable, dict[str, Any]]]
    maker: Callable[[str, dict[str, Any], Options], Maker]  # name, arguments, options

    def default_options(self, name: str) -> Options:
        _check_gymnasium(f"{self.prefix}:{name}")
        self.find(name)
        return Options()

    def make(
        self, name: str, batch_size: int, seed: int, threads: int, options: Options
    ) -> Processes:
        """B of them, a process each."""
        del threads
        whole = f"{self.prefix}:{name}"
        _check_gymnasium(whole)
        arguments = json_object("arguments", options.arguments)
        function, own = self.find(name)
        _check_arguments(whole, function, own, arguments)
        maker = self.maker(name, arguments, options)
        return Processes(whole, maker, batch_size, seed, options)


def import_module(name: str, module: str) -> ModuleType:
    """The module that an environment's name has; the current folder's, too.

    Raises UserError if there is none, or if it fails.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # worker processes inherit the path
    if not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"{name}: {module!r} is no module's name")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name}: {error}; is its package installed, or its file in this folder?"
        ) from error
    except (Exception, SystemExit) as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        line = " ".join(str(error).split())
        raise UserError(
            f"{name}: importing {module} raised {type(error).__name__}: {line} "
            f"({last.filename}, line {last.lineno})"
        ) from error


def _check_gymnasium(name: str) -> None:
    try:
        import gymnasium  # noqa: F401 whose worker processes all of them use
    except ModuleNotFoundError as error:
        raise UserError(f"{name}: {error} ({INSTALL})") from error


def _check_arguments(
    name: str, function: Callable, own: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """Raises UserError unless the function can be called with these arguments."""
    try:
        inspect.signature(function).bind(**(own | arguments))
    except TypeError as error:
        raise UserError(
            f"{name}: {error} (--env.arguments is {arguments})".replace("\n", " ")
        ) from error
    except ValueError:  # of some functions in C, which have no signature
        pass


def _find_gym(name: str) -> tuple[Callable, dict[str, Any]]:
    """The entry point of a registered environment, and its registered arguments."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    whole = f"gym:{name}"
    module, colon, key = name.rpartition(":")
    if colon:
        import_module(whole, module)
    try:
        spec = gymnasium.spec(key)
    except gymnasium.error.Error as error:
        way = "; one that a module registers is gym:MODULE:ID"
        if colon:
            way = f"; {module} must call gymnasium.register with this id"
        raise UserError(
            f"{whole}: gymnasium has no environment {key!r}"
            f"{nearest(key, gymnasium.registry)}{way}"
        ) from error
    creator = spec.entry_point
    try:
        creator = load_env_creator(creator) if isinstance(creator, str) else creator
    except (ImportError, AttributeError, gymnasium.error.Error) as error:
        line = " ".join(str(error).split())
        raise UserError(f"{whole} cannot be made: {line}") from error
    return creator, spec.kwargs


def _gym_maker(name: str, arguments: dict[str, Any], options: Options) -> Maker:
    """Seeded by gymnasium's reset."""
    import gymnasium

    from sebulba.host_environments.masked import WithMask

    module, _, key = name.rpartition(":")
    settings = {"disable_env_checker": True}
    if _draws(_find_gym(name)[0]):
        settings["render_mode"] = "rgb_array"  # draws nothing until it is asked for
    if options.max_episode_steps is not None:
        settings["max_episode_steps"] = options.max_episode_steps

    # The registry of a worker has what modules register; a script's own is sent there.
    registered = key if module else gymnasium.spec(key)
    masked = options.action_mask  # the options' own class would import JAX there

    def make_one():
        import importlib

        import gymnasium

        if module:
            importlib.import_module(module)
        environment = gymnasium.make(registered, **(settings | arguments))
        return WithMask(environment, f"gym:{name}") if masked else environment

    return lambda seed: make_one


def _draws(creator: Callable) -> bool:
    """Whether an environment takes `render_mode="rgb_array"`."""
    metadata = getattr(creator, "metadata", None) or {}
    try:
        inspect.signature(creator).bind_partial(render_mode="rgb_array")
    except (TypeError, ValueError):  # it takes none; or it is a function in C
        return False
    return "rgb_array" in metadata.get("render_modes", ())


def _find_dm(path: str) -> tuple[Callable, dict[str, Any]]:
    whole = f"dm:{path}"
    module, colon, name = path.partition(":")
    if not colon or not name:
        raise UserError(f"{whole}: write dm:MODULE:FUNCTION, as dm:bsuite:load_from_id")
    function = getattr(import_module(whole, module), name, None)
    if not callable(function):
        raise UserError(f"{whole}: {module} has no function {name!r}")
    return function, {}


def _dm_maker(path: str, arguments: dict[str, Any], options: Options) -> Maker:
    from sebulba.host_environments import dm

    return dm.maker(path, arguments, options)


GYM = PythonAdapter("gym", _find_gym, _gym_maker)
DM = PythonAdapter("dm", _find_dm, _dm_maker)
