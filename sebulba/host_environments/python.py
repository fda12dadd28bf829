"""Python environments by name: `gym:ID` of gymnasium's registry, `dm:MODULE:FUNCTION`.

Whatever they are, each steps in a worker process, see `processes`.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from podracer.errors import UserError, nearest
from sebulba.host_environments.options import Options, json_object
from sebulba.host_environments.processes import Processes

INSTALL = "pip install 'podracer[gymnasium]'"
Maker = Callable[[int], Callable[[], Any]]  # (seed) -> what makes a gymnasium.Env


class Door(NamedTuple):
    """A kind of names, as `sebulba.host_environments.DOORS` has them."""

    prefix: str
    check: Callable[[str], None]  # UserError where the name leads nowhere
    maker: Callable[[str, dict[str, Any], int | None], Maker]  # name, arguments, limit

    def default_options(self, name: str) -> Options:
        self.check(name)
        return Options()

    def make(
        self, name: str, batch_size: int, seed: int, threads: int, options: Options
    ) -> Processes:
        """B of them, a process each."""
        del threads
        self.check(name)
        whole = f"{self.prefix}:{name}"
        given = json_object("arguments", options.arguments)
        maker = self.maker(name, given, options.max_episode_steps)
        return Processes(whole, maker, batch_size, seed, options)


def _check_gym(name: str) -> None:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise UserError(f"gym:{name}: {error} ({INSTALL})") from error
    try:
        gymnasium.spec(name)
    except ModuleNotFoundError as error:
        raise UserError(f"gym:{name}: {error}; is its package installed?") from error
    except gymnasium.error.Error as error:
        raise UserError(
            f"gymnasium knows no environment {name!r}{nearest(name, gymnasium.registry)}; "
            "one that a module registers is gym:MODULE:ID"
        ) from error


def _gym_maker(name: str, given: dict[str, Any], limit: int | None) -> Maker:
    """Seeded by gymnasium's reset."""
    limits = {} if limit is None else {"max_episode_steps": limit}

    def make_one():
        import gymnasium

        return gymnasium.make(name, disable_env_checker=True, **limits, **given)

    return lambda seed: make_one


def _check_dm(path: str) -> None:
    module, colon, name = path.partition(":")
    if not colon or not name:
        raise UserError(
            f"dm:{path}: write dm:MODULE:FUNCTION, as dm:bsuite:load_from_id"
        )
    try:
        import gymnasium  # noqa: F401 whose worker processes these are

        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UserError(f"dm:{path}: {error}; is its package installed?") from error
    if not callable(function):
        raise UserError(f"dm:{path}: {module} has no function {name!r}")


def _dm_maker(path: str, given: dict[str, Any], limit: int | None) -> Maker:
    from sebulba.host_environments import dm

    return dm.maker(path, given, limit)


GYM = Door("gym", _check_gym, _gym_maker)
DM = Door("dm", _check_dm, _dm_maker)
